// The small stop button of one goal, one sub-agent or one tool call. The rest of the turn goes on.

import { h, icon } from "./dom.js";

export class PartStopButton {
  node = h("button", { type: "button", class: "part-stop", hidden: true }, icon("close"));
  #next;
  #shown = "";

  /** `next` gets the focus when the button goes away under it. */
  constructor(onStop, next) {
    this.#next = next;
    this.node.addEventListener("click", onStop);
  }

  /** `name` is what it would stop; `isAsked`: it was pressed, here or elsewhere. */
  update(name, isShown, isAsked) {
    if (this.node.hidden === isShown) this.#show(isShown);
    const words = `${isAsked ? "Stopping" : "Stop"} ${name}`;
    if (this.#shown === words) return;
    this.#shown = words;
    this.node.title = isAsked ? words : `${words}; the rest goes on`;
    this.node.setAttribute("aria-label", words);
    this.node.setAttribute("aria-disabled", String(isAsked)); // not disabled: it keeps the focus
  }

  #show(isShown) {
    const hadFocus = document.activeElement === this.node;
    this.node.hidden = !isShown;
    if (hadFocus && !isShown) this.#next.focus();
  }
}
