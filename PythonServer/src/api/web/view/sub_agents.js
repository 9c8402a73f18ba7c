// The sub-agents of a delegate call: one row each, with its state, what it says right now, and all of it on demand.

import { isLive, previewOf } from "../preview.js";
import { duration, goalState } from "../words.js";
import { h, icon, setText } from "./dom.js";
import { GoalView } from "./goal.js"; // and that has tool cards, which have this
import { PartStopButton } from "./part_stop.js";

export class SubAgentsView {
  node = h("ul", { class: "sub-agents", "aria-label": "Sub-agents", hidden: true });
  #rows = new Map();

  update(call, turn, isStopping, stops) {
    this.node.hidden = call.goals.length === 0;
    if (this.node.hidden) return;
    const titles = new Map(call.goals.map((goal) => [goal.id, goal.title]));
    for (const goal of call.goals) this.#row(goal).update(goal, titles, turn, isStopping, stops);
  }

  tick(now) {
    for (const row of this.#rows.values()) row.tick(now);
  }

  #row(goal) {
    let row = this.#rows.get(goal.id);
    if (row === undefined) {
      row = new SubAgentRow(goal);
      this.#rows.set(goal.id, row);
      this.node.append(row.node);
    }
    return row;
  }
}

class SubAgentRow {
  node;
  #goal;
  #stops = null;
  #state = h("span", { class: "goal-state" });
  #needs = h("span", { class: "needs muted" });
  #time = h("span", { class: "time muted" });
  #preview = h("bdi", {});
  #line = h("span", { class: "preview muted" }, this.#preview);
  #toggle = h("button", { type: "button", class: "goal-name fold-button", "aria-expanded": "false" });
  #stop = new PartStopButton(() => this.#stops.stop("goal", this.#goal), this.#toggle);
  #body;
  #view;
  #updateView = () => {};
  #isOpen = null; // as the user has left it; null: untouched
  #shown = "";

  constructor(goal) {
    this.#goal = goal;
    this.#view = new GoalView(goal, false);
    this.#body = h("div", { class: "sub-agent-body", hidden: true },
      h("details", { class: "thinking" }, h("summary", {}, "task"), h("div", { class: "thoughts" }, goal.prompt ?? "")),
      this.#view.node);
    setText(this.#toggle, goal.title);
    this.#toggle.addEventListener("click", () => {
      this.#isOpen = this.#body.hidden;
      this.#unfold(this.#isOpen);
    });
    this.node = h("li", { class: "sub-agent", "data-goal-id": goal.id },
      h("div", { class: "goal-row" }, this.#state,
        h("span", { class: "goal-what" }, this.#toggle, this.#needs, this.#line), this.#time, this.#stop.node),
      this.#body);
  }

  update(goal, titles, turn, isStoppingAbove, stops) {
    this.#goal = goal;
    this.#stops = stops;
    const isAsked = stops.isAsked("goal", goal);
    const isStopping = isStoppingAbove || isAsked;
    const { icon: name, word } = goalState(goal, isStopping);
    if (this.#shown !== name + word) {
      this.#shown = name + word;
      this.node.dataset.state = name;
      this.#state.replaceChildren(icon(name), h("span", { class: "state-word" }, word));
    }
    const needs = goal.dependsOn.map((id) => titles.get(id) ?? id).join(", ");
    this.#needs.hidden = needs === "";
    setText(this.#needs, `after ${needs}`);
    this.#stop.update(goal.title, isLive(goal) && (isAsked || !isStopping), isAsked);
    this.#updateView = () => this.#view.update(goal, turn, isStopping, stops);
    // Sub-agents of its own are a part of the tree, and shown unless they are folded away; so is what it asks the user.
    this.#unfold(this.#isOpen ?? goal.parts.some((part) => part.goals?.length > 0 || part.question));
  }

  tick(now) {
    const { startedAt, endedAt } = this.#goal;
    setText(this.#time, startedAt === null ? "" : duration((endedAt ?? now) - startedAt));
    if (!this.#body.hidden) this.#view.tick(this.#goal, now);
    const { words, isEnd } = previewOf(this.#goal, now);
    setText(this.#preview, words);
    this.#line.classList.toggle("is-end", isEnd);
    this.#line.hidden = !this.#body.hidden || words === "";
  }

  /** What is folded away costs nothing while the sub-agent talks. */
  #unfold(isOpen) {
    this.#toggle.setAttribute("aria-expanded", String(isOpen));
    this.#body.hidden = !isOpen;
    this.#line.hidden = isOpen || this.#preview.textContent === "";
    if (isOpen) this.#updateView();
  }
}
