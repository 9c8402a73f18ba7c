// The plan of a turn as a tree: one row a goal, with its state, its time, and what it waits for.

import { duration, goalState } from "../words.js";
import { isLive } from "../preview.js";
import { h, icon, setText } from "./dom.js";
import { PartStopButton } from "./part_stop.js";

export class PlanView {
  node;
  #list = h("ul", { class: "plan-goals" });
  #count = h("span", { class: "muted" });
  #rows = new Map();
  #turn = null;
  #stops = null;

  /** `onPick(goalId)`: the user wants to see what the goal says. */
  constructor(onPick) {
    this.onPick = onPick;
    this.node = h("section", { class: "plan card", "aria-label": "Plan" },
      h("h3", { class: "plan-title" }, "Plan ", this.#count), this.#list);
  }

  /** `stopping` has the ids of the goals that are being stopped, alone or with something around them. */
  update(turn, stopping, stops) {
    this.#turn = turn;
    this.#stops = stops;
    this.#place(this.#list, turn.top);
    for (const goal of turn.goals.values()) this.#rows.get(goal.id).update(goal, turn, stopping.has(goal.id), stops);
    const leaves = [...turn.goals.values()].filter((goal) => goal.goals.length === 0);
    const done = leaves.filter((goal) => goal.status === "COMPLETED").length;
    setText(this.#count, `${done} of ${leaves.length} done`);
  }

  tick(now) {
    for (const goal of this.#turn?.goals.values() ?? []) this.#rows.get(goal.id)?.tick(goal, now);
  }

  #place(list, goals) {
    for (const goal of goals) {
      let row = this.#rows.get(goal.id);
      if (row === undefined) {
        row = new GoalRow(goal, () => this.onPick(goal.id), () => this.#stops.stop("goal", goal));
        this.#rows.set(goal.id, row);
        list.append(row.node);
      }
      if (goal.goals.length > 0) this.#place(row.children(), goal.goals);
    }
  }
}

class GoalRow {
  node;
  #state = h("span", { class: "goal-state" });
  #title = h("button", { type: "button", class: "goal-name" });
  #needs = h("span", { class: "needs muted" });
  #time = h("span", { class: "time muted" });
  #stop;
  #children = null;
  #shown = "";

  constructor(goal, onPick, onStop) {
    this.#title.addEventListener("click", onPick);
    this.#stop = new PartStopButton(onStop, this.#title);
    const row = h("div", { class: "goal-row" }, this.#state,
      h("span", { class: "goal-what" }, this.#title, this.#needs), this.#time,
      this.#stop.node);
    this.node = h("li", { "data-goal-id": goal.id }, row);
  }

  children() {
    if (this.#children === null) this.node.append((this.#children = h("ul", { class: "plan-goals" })));
    return this.#children;
  }

  update(goal, turn, isStopping, stops) {
    const { icon: name, word } = goalState(goal, isStopping);
    if (this.#shown !== name + word) {
      this.#shown = name + word;
      this.node.dataset.state = name;
      this.#state.replaceChildren(icon(name), h("span", { class: "state-word" }, word));
    }
    setText(this.#title, goal.title);
    const names = goal.dependsOn.map((id) => turn.goals.get(id)?.title ?? id);
    this.#needs.hidden = names.length === 0;
    setText(this.#needs, `after ${names.join(", ")}`);
    const isAsked = stops.isAsked("goal", goal);
    this.#stop.update(goal.title, isLive(goal) && (isAsked || !isStopping), isAsked);
  }

  tick(goal, now) {
    const hasTime = goal.startedAt !== null && !goal.isKept;
    setText(this.#time, hasTime ? duration((goal.endedAt ?? now) - goal.startedAt) : "");
  }
}
