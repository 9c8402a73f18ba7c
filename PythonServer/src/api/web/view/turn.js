// One turn: the user's message, the plan, what each goal says, and how it ended.

import { renderMarkdown } from "../markdown.js";
import { isOpen } from "../state.js";
import { causeExplained, causeWords, goalState, retryWords } from "../words.js";
import { h, icon, setText, showText } from "./dom.js";
import { PlanView } from "./plan.js";
import { receiptView } from "./receipt.js";

export class TurnView {
  node;
  #turn = null;
  #plan = new PlanView((goalId) => this.#goals.get(goalId)?.node.scrollIntoView({ block: "start" }));
  #goals = new Map();
  #goalList = h("div", { class: "goals" });
  #input = h("div", { class: "bubble" });
  #note = h("p", { class: "note", hidden: true });
  #retry = h("p", { class: "retry", hidden: true });
  #working = h("p", { class: "working", hidden: true });
  #end = h("div", { class: "turn-end" });
  #endShown = false;

  constructor(turn) {
    this.node = h("article", { class: "turn", "data-turn-id": turn.id },
      h("div", { class: "user" }, h("span", { class: "sr-only" }, "You:"), this.#input),
      h("div", { class: "answer" }, h("span", { class: "sr-only" }, "Answer:"),
        this.#note, this.#plan.node, this.#goalList, this.#retry, this.#working, this.#end));
  }

  /** `isStopping`: a stop was asked for, here or elsewhere. */
  update(turn, isStopping) {
    this.#turn = turn;
    this.node.dataset.state = turn.state;
    this.node.setAttribute("aria-label", `Turn ${turn.number}, ${turn.state}`);
    setText(this.#input, turn.input);
    showText(this.#note, turn.note);
    const isPlan = turn.goals.size > 1;
    this.#plan.node.hidden = !isPlan;
    if (isPlan) this.#plan.update(turn, isStopping);
    for (const goal of turn.goals.values()) this.#updateGoal(goal, turn, isPlan, isStopping);
    this.#working.hidden = !isOpen(turn) || turn.goals.size > 0 || turn.retry !== null;
    setText(this.#working, isStopping ? "Stopping…" : "Making a plan…");
    if (!isOpen(turn) && !this.#endShown) this.#showEnd(turn);
  }

  /** The time goes on. `now` is the server's. */
  tick(now) {
    const turn = this.#turn;
    if (turn === null) return;
    this.#plan.tick(now);
    showRetry(this.#retry, turn.retry, now);
    for (const goal of turn.goals.values()) this.#goals.get(goal.id)?.tick(goal, now);
  }

  #updateGoal(goal, turn, isPlan, isStopping) {
    let view = this.#goals.get(goal.id);
    if (view === undefined) {
      const isSilent = !goal.text && !goal.thinking && !goal.error && goal.retry === null;
      if (isSilent && isPlan) return; // its row in the plan says enough
      view = new GoalView(goal, isPlan);
      this.#goals.set(goal.id, view);
      this.#insert(view, turn);
    }
    view.update(goal, turn, isStopping);
  }

  /** In the order of the plan, whichever goal speaks first. */
  #insert(view, turn) {
    const ids = [...turn.goals.keys()];
    const after = ids.slice(ids.indexOf(view.goalId) + 1).map((id) => this.#goals.get(id)).find(Boolean);
    this.#goalList.insertBefore(view.node, after?.node ?? null);
  }

  #showEnd(turn) {
    this.#endShown = true;
    const hasText = [...turn.goals.values()].some((goal) => goal.text);
    if (turn.state === "completed" && !hasText) this.#end.append(...turn.messages.map(said));
    if (turn.state === "cancelled") this.#end.append(...stopped(turn, hasText));
    if (turn.state === "failed") {
      const detail = turn.error ?? "It is not known why.";
      this.#end.append(h("div", { class: "failure", role: "alert" }, icon("failed"),
        h("div", {}, h("strong", {}, "This turn failed"), h("p", {}, detail))));
    }
  }
}

class GoalView {
  node;
  goalId;
  #thoughts = h("div", { class: "thoughts" });
  #thinking = h("details", { class: "thinking", hidden: true }, h("summary", {}, "thinking"), this.#thoughts);
  #text = h("div", { class: "text" });
  #retry = h("p", { class: "retry", hidden: true });
  #error = h("p", { class: "goal-error", hidden: true });
  #state = h("span", { class: "goal-state" });
  #shownText = null;
  #shownState = "";

  constructor(goal, isPlan) {
    this.goalId = goal.id;
    const head = isPlan ? h("h4", { class: "goal-head" }, h("span", {}, goal.title), this.#state) : null;
    this.node = h("section", { class: "goal", "data-goal-id": goal.id, "aria-label": isPlan ? goal.title : null },
      head, this.#thinking, this.#text, this.#retry, this.#error);
  }

  update(goal, turn, isStopping) {
    const { icon: name, word } = goalState(goal, isStopping);
    if (this.#shownState !== name + word) {
      this.#shownState = name + word;
      this.node.dataset.state = name;
      this.#state.replaceChildren(icon(name), h("span", { class: "state-word" }, word));
    }
    this.node.classList.toggle("is-live", name === "working" && isOpen(turn));
    this.#thinking.hidden = goal.thinking === "";
    setText(this.#thoughts, goal.thinking);
    if (this.#shownText !== goal.text) {
      this.#shownText = goal.text;
      this.#text.replaceChildren(renderMarkdown(goal.text));
    }
    const isSaidBelow = turn.state === "failed" && turn.goals.size === 1;
    showText(this.#error, isSaidBelow ? null : goal.error);
  }

  tick(goal, now) {
    showRetry(this.#retry, goal.retry, now);
  }
}

function showRetry(node, retry, now) {
  node.hidden = retry === null;
  if (retry === null) return;
  if (!node.hasChildNodes()) node.append(h("span", {}), h("small", {}));
  setText(node.firstChild, `${retryWords(retry, now)}.`);
  const cap = retry.isCapped ? "It asked for a longer wait; the wait was capped. " : "";
  setText(node.lastChild, cap + (retry.reason ?? ""));
}

function stopped(turn, hasText) {
  const why = [causeExplained(turn.cause), turn.reason ? `“${turn.reason}”` : null].filter(Boolean).join(" ");
  return [
    h("p", { class: "stopped" },
      h("span", { class: "chip" }, icon("stopped"), h("span", {}, causeWords(turn.cause))),
      h("span", { class: "muted" }, [hasText ? "" : "Nothing had been said yet.", why].filter(Boolean).join(" "))),
    turn.error ? h("p", { class: "goal-error" }, turn.error) : null,
    receiptView(turn),
  ].filter(Boolean);
}

/** A message of the transcript. */
export function said(message) {
  if (message.role === "user") return h("div", { class: "user" }, h("div", { class: "bubble" }, message.content));
  const text = h("div", { class: "text" });
  text.append(renderMarkdown(message.content));
  const answer = h("div", { class: "answer" }, text);
  if (message.stopped) {
    answer.append(h("p", { class: "stopped" },
      h("span", { class: "chip" }, icon("stopped"), h("span", {}, causeWords(message.cause)))));
  }
  return answer;
}
