// A tool call: what was asked for, what comes out while it runs, who works on it, and how it ended.

import { askedWords, callName, callState, countGoals } from "../tool_words.js";
import { duration } from "../words.js";
import { h, icon, setText, showText } from "./dom.js";
import { OutputView } from "./output.js";
import { PartStopButton } from "./part_stop.js";
import { SubAgentsView } from "./sub_agents.js";

export class ToolCard {
  node;
  #call;
  #asked;
  #code;
  #output;
  #of = h("span", { class: "tool-of muted" });
  #agents = null;
  #stops = null;
  #stop;
  #state = h("span", { class: "goal-state" });
  #time = h("span", { class: "time muted" });
  #note = h("p", { class: "tool-note", hidden: true });
  #shownState = "";

  constructor(call) {
    this.#call = call;
    this.#asked = askedWords(call);
    const { name, code, options, kind } = this.#asked;
    this.#output = new OutputView(name);
    this.#code = h("pre", { class: kind === "shell" ? "tool-asked is-command" : "tool-asked" }, h("code", {}, code));
    if (kind === "delegate") this.#agents = new SubAgentsView();
    this.node = h("section", { class: "tool", "data-call-id": call.id, "data-kind": kind, tabindex: "-1" });
    this.#stop = new PartStopButton(() => this.#stops.stop("call", this.#call), this.node);
    this.node.append(
      h("div", { class: "tool-head" }, h("span", { class: "tool-name" }, name), this.#of, this.#state, this.#time,
        this.#stop.node),
      this.#code, h("p", { class: "tool-options muted", hidden: !options }, options),
      ...(this.#agents === null ? [] : [this.#agents.node]), this.#output.node, this.#note);
  }

  update(call, turn, isStoppingAbove, stops) {
    this.#call = call;
    this.#stops = stops;
    const { name, of, code, kind } = this.#asked;
    const isAsked = stops.isAsked("call", call);
    const isStopping = isStoppingAbove || isAsked;
    const { icon: picture, word } = callState(call, isStopping);
    if (this.#shownState !== picture + word) {
      this.#shownState = picture + word;
      this.node.dataset.state = call.state;
      this.node.setAttribute("aria-label", `Tool ${name}, ${word.replace(" ·", ",")}`);
      this.#state.replaceChildren(icon(picture), h("span", { class: "state-word" }, word));
    }
    const { done, all } = countGoals(call);
    this.#of.title = of; // the line may be too short for it
    showText(this.#of, kind === "delegate" && all > 0 ? `${done} of ${all} done` : of);
    // A delegation is being prepared, and then its sub-agents say what was asked of them.
    this.#code.hidden = code === "" || (kind === "delegate" && (all > 0 || call.state === "running"));
    const isStoppable = call.state === "running" && (isAsked || !isStopping);
    this.#stop.update(callName(call), isStoppable, isAsked);
    this.#agents?.update(call, turn, isStopping, stops);
    this.#output.update(call);
    showText(this.#note, call.note);
  }

  tick(now) {
    const { startedAt, endedAt } = this.#call;
    setText(this.#time, duration((endedAt ?? now) - startedAt));
    this.#agents?.tick(now);
  }
}
