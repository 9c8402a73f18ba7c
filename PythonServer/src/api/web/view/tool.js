// A tool call: what was asked for, what comes out while it runs, and how it ended.

import { askedWords, callState } from "../tool_words.js";
import { duration } from "../words.js";
import { h, icon, setText, showText } from "./dom.js";
import { OutputView } from "./output.js";

export class ToolCard {
  node;
  #call;
  #output;
  #state = h("span", { class: "goal-state" });
  #time = h("span", { class: "time muted" });
  #note = h("p", { class: "tool-note", hidden: true });
  #shownState = "";

  constructor(call) {
    const { code, options, isCommand } = askedWords(call);
    this.#call = call;
    this.#output = new OutputView(call.name);
    this.node = h("section", { class: "tool", "data-call-id": call.id },
      h("div", { class: "tool-head" }, h("span", { class: "tool-name" }, call.name), this.#state, this.#time),
      code ? h("pre", { class: isCommand ? "tool-asked is-command" : "tool-asked" }, h("code", {}, code)) : null,
      options ? h("p", { class: "tool-options muted" }, options) : null,
      this.#output.node, this.#note);
  }

  update(call, isStopping) {
    this.#call = call;
    const { icon: name, word } = callState(call, isStopping);
    if (this.#shownState !== name + word) {
      this.#shownState = name + word;
      this.node.dataset.state = call.state;
      this.node.setAttribute("aria-label", `Tool ${call.name}, ${word.replace(" ·", ",")}`);
      this.#state.replaceChildren(icon(name), h("span", { class: "state-word" }, word));
    }
    this.#output.update(call);
    showText(this.#note, call.note);
  }

  tick(now) {
    const { startedAt, endedAt } = this.#call;
    setText(this.#time, duration((endedAt ?? now) - startedAt));
  }
}
