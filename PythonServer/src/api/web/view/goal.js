// What a goal says and does: its thinking, its text, its tools, a wait before another attempt, and its error.

import { renderMarkdown } from "../markdown.js";
import { failureWords } from "../tool_words.js";
import { isOpen } from "../turn_state.js";
import { fallbackWords, goalState, retryWords } from "../words.js";
import { h, icon, setText, showText } from "./dom.js";
import { QuestionCard } from "./question.js";
import { ToldPart } from "./told.js";
import { ToolCard } from "./tool.js";

export class GoalView {
  node;
  goalId;
  #thoughts = h("div", { class: "thoughts" });
  #thinking = h("details", { class: "thinking", hidden: true }, h("summary", {}, "thinking"), this.#thoughts);
  #partList = h("div", { class: "parts" });
  #parts = new Map(); // part -> its view
  #fallback = h("p", { class: "fallback", hidden: true });
  #retry = h("p", { class: "retry", hidden: true });
  #error = h("p", { class: "goal-error", hidden: true });
  #state = h("span", { class: "goal-state" });
  #shownState = "";

  constructor(goal, isPlan) {
    this.goalId = goal.id;
    const head = isPlan ? h("h4", { class: "goal-head" }, h("span", {}, goal.title), this.#state) : null;
    this.node = h("section", { class: "goal", "data-goal-id": goal.id, "aria-label": isPlan ? goal.title : null },
      head, this.#thinking, this.#partList, this.#fallback, this.#retry, this.#error);
  }

  /** `isStopping`: the goal, or something around it, is being stopped. */
  update(goal, turn, isStopping, stops) {
    const { icon: name, word } = goalState(goal, isStopping);
    if (this.#shownState !== name + word) {
      this.#shownState = name + word;
      this.node.dataset.state = name;
      this.#state.replaceChildren(icon(name), h("span", { class: "state-word" }, word));
    }
    this.node.classList.toggle("is-live", name === "working" && isOpen(turn));
    this.#thinking.hidden = goal.thinking === "";
    setText(this.#thoughts, goal.thinking);
    this.#showParts([...goal.parts, ...goal.upcoming], turn, isStopping, stops);
    showText(this.#fallback, goal.fallback && goal.retry === null ? fallbackWords(goal.fallback) : null);
    // Said once: not if the turn's failure says it, or the tool call that failed.
    const isAll = turn.goals.size === 1 && turn.goals.has(goal.id);
    const isSaid = (turn.state === "failed" && isAll) || goal.parts.at(-1)?.content === goal.error;
    showText(this.#error, isSaid ? null : failureWords(goal.error));
  }

  tick(goal, now) {
    showRetry(this.#retry, goal.retry, now);
    for (const part of this.#parts.values()) part.tick(now);
  }

  /** They are in order; a new one may come before a message that the model answers later. */
  #showParts(parts, turn, isStopping, stops) {
    let previous = null;
    for (const part of parts) {
      const view = this.#part(part, previous);
      view.update(part, turn, isStopping, stops);
      previous = view.node;
    }
    for (const [part, view] of this.#parts) if (part.kind === "told" && !parts.includes(part)) view.node.remove();
  }

  #part(part, previous) {
    const known = this.#parts.get(part);
    if (known !== undefined) return known;
    const view = viewOf(part);
    this.#parts.set(part, view);
    if (previous === null) this.#partList.prepend(view.node);
    else previous.after(view.node);
    return view;
  }
}

function viewOf(part) {
  if (part.kind === "told") return new ToldPart(part);
  if (part.kind === "text") return new TextPart();
  return part.name === "ask_user" ? new QuestionCard(part) : new ToolCard(part);
}

class TextPart {
  node = h("div", { class: "text" });
  #shown = null;

  update({ text }) {
    if (this.#shown === text) return;
    this.#shown = text;
    this.node.replaceChildren(renderMarkdown(text));
  }

  tick() {}
}

export function showRetry(node, retry, now) {
  node.hidden = retry === null;
  if (retry === null) return;
  if (!node.hasChildNodes()) node.append(h("span", {}), h("small", {}));
  setText(node.firstChild, `${retryWords(retry, now)}.`);
  const cap = retry.isCapped ? "It asked for a longer wait; the wait was capped." : null;
  const stop = retry.until > now ? "Stop ends the wait at once." : null;
  setText(node.lastChild, [cap, retry.reason ? `${retry.reason}.`.replace(/\.\.$/, ".") : null, stop].filter(Boolean).join(" "));
}
