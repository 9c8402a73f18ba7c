// One turn: the user's message, the plan, what each goal says and does, and how it ended.

import { isOpen } from "../turn_state.js";
import { fallbackWords, leftOutWords } from "../words.js";
import { h, setText, showText } from "./dom.js";
import { CompactionView } from "./compaction.js";
import { GoalView, showRetry } from "./goal.js";
import { handedInView } from "./handed_in.js";
import { PlanView } from "./plan.js";
import { ToldList } from "./told.js";
import { endOf, tellFate, usageOf } from "./turn_end.js";

export class TurnView {
  node;
  #turn = null;
  #plan = new PlanView((goalId) => this.#goals.get(goalId)?.node.scrollIntoView({ block: "start" }));
  #goals = new Map();
  #goalList = h("div", { class: "goals" });
  #input = h("div", { class: "bubble" });
  #told = new ToldList();
  #compaction;
  #note = h("p", { class: "note", hidden: true });
  #fallback = h("p", { class: "fallback", hidden: true });
  #retry = h("p", { class: "retry", hidden: true });
  #working = h("p", { class: "working", hidden: true });
  #end = h("div", { class: "turn-end" });
  #foot = h("div", { class: "turn-foot" });
  #body;
  #fold = null;
  #endShown = false;

  constructor(turn, onUndo) {
    this.#compaction = new CompactionView(onUndo);
    this.#body = h("div", { class: "turn-body" },
      turn.isCompaction ? null : h("div", { class: "user" }, h("span", { class: "sr-only" }, "You:"), this.#input),
      this.#told.node, this.#compaction.node,
      h("div", { class: "answer" }, turn.isCompaction ? null : h("span", { class: "sr-only" }, "Answer:"),
        this.#note, this.#fallback, this.#plan.node, this.#goalList, this.#retry, this.#working, this.#end));
    const handedIn = turn.handedIn.length > 0 ? handedInView(turn.handedIn) : null;
    this.node = h("article", {
      class: "turn", "data-turn-id": turn.id, "data-kind": turn.isCompaction ? "compaction" : "message",
    }, handedIn, this.#body, this.#foot);
  }

  /** `isStopping`: a stop of the turn was asked for, here or elsewhere; `stops` are those of its parts. */
  update(turn, isStopping, stops) {
    this.#turn = turn;
    this.node.dataset.state = turn.state;
    const what = turn.isCompaction ? "Shortening of the history" : `Turn ${turn.number}`;
    const words = [what, turn.state, turn.leftOut && leftOutWords(turn.leftOut)].filter(Boolean);
    this.node.setAttribute("aria-label", words.join(", "));
    setText(this.#input, turn.input);
    this.#told.update(turn);
    showText(this.#note, turn.note);
    const isPlan = turn.goals.size > 1;
    this.#plan.node.hidden = !isPlan;
    const stopping = goalsBeingStopped(turn, isStopping, stops);
    if (isPlan) this.#plan.update(turn, stopping, stops);
    for (const goal of turn.goals.values()) this.#updateGoal(goal, turn, isPlan, stopping.has(goal.id), stops);
    showText(this.#fallback, turn.fallback && turn.retry === null ? fallbackWords(turn.fallback) : null);
    const isPlanning = isOpen(turn) && turn.goals.size === 0 && turn.retry === null;
    this.#working.hidden = !isPlanning || (turn.isCompaction && !isStopping);
    setText(this.#working, isStopping ? "Stopping…" : "Making a plan…");
    if (!isOpen(turn)) this.#showEnd(turn);
    if (turn.leftOut !== null) this.#foldAway(turn);
  }

  /** The time goes on. `now` is the server's. */
  tick(now) {
    const turn = this.#turn;
    if (turn === null) return;
    this.#plan.tick(now);
    showRetry(this.#retry, turn.retry, now);
    for (const goal of turn.goals.values()) this.#goals.get(goal.id)?.tick(goal, now);
  }

  /** How its compaction of the history stands. */
  updateCompaction(isUndone, offer) {
    this.#compaction.update(this.#turn, isUndone, offer);
  }

  /** Show what may be done with it. */
  offer(node) {
    if (node.parentNode !== this.#foot) this.#foot.prepend(node);
  }

  #updateGoal(goal, turn, isPlan, isStopping, stops) {
    let view = this.#goals.get(goal.id);
    if (view === undefined) {
      const isSilent = goal.parts.length === 0 && goal.upcoming.length === 0 && !goal.thinking && !goal.error && goal.retry === null;
      if (isSilent && isPlan) return; // its row in the plan says enough
      view = new GoalView(goal, isPlan);
      this.#goals.set(goal.id, view);
      this.#insert(view, turn);
    }
    view.update(goal, turn, isStopping, stops);
  }

  /** In the order of the plan, whichever goal speaks first. */
  #insert(view, turn) {
    const ids = [...turn.goals.keys()];
    const after = ids.slice(ids.indexOf(view.goalId) + 1).map((id) => this.#goals.get(id)).find(Boolean);
    this.#goalList.insertBefore(view.node, after?.node ?? null);
  }

  /** Once; what became of the messages that its stop has kept may still be told. */
  #showEnd(turn) {
    if (this.#endShown) return tellFate(this.#end, turn);
    this.#endShown = true;
    this.#end.append(...endOf(turn));
    const usage = usageOf(turn);
    if (usage !== null) this.#foot.append(usage);
  }

  /** It is no part of the conversation any more: one line is left, and the rest can be unfolded. */
  #foldAway(turn) {
    this.node.classList.add("left-out");
    if (this.#fold === null) {
      this.#fold = h("summary", {}, h("span", { class: "fold-what" }, firstLine(turn.input)), h("span", { class: "fold-why" }));
      const fold = h("details", { class: "fold" }, this.#fold);
      this.#body.replaceWith(fold);
      fold.append(this.#body);
    }
    setText(this.#fold.lastChild, leftOutWords(turn.leftOut));
  }
}

/** The ids of the plan's goals that a stop has reached: of the turn, of the goal, or of one around it. */
function goalsBeingStopped(turn, isStopping, stops) {
  const found = new Set();
  const look = (goals, isStoppingAbove) => {
    for (const goal of goals) {
      const isStopped = isStoppingAbove || stops.isAsked("goal", goal);
      if (isStopped) found.add(goal.id);
      look(goal.goals, isStopped);
    }
  };
  look(turn.top, isStopping);
  return found;
}

const firstLine = (text) => text.trim().split("\n", 1)[0];
