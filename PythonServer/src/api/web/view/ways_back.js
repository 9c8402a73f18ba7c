// What may be done with the newest turn: a row of small buttons.

import { WAYS_BACK } from "../words.js";
import { h, setText } from "./dom.js";

export class WaysBackView {
  node = h("div", { class: "ways-back", role: "group", "aria-label": "Go back or go on" });
  #buttons = new Map();

  /** `onBack(way, isByKey)` */
  constructor(onBack) {
    for (const [way, { explained }] of Object.entries(WAYS_BACK)) {
      const button = h("button", { type: "button", class: "quiet small", title: explained, "data-way": way });
      button.addEventListener("click", (event) => onBack(way, event.detail === 0)); // no press of a pointer: a key
      this.#buttons.set(way, button);
      this.node.append(button);
    }
  }

  /** `pending` is the way that is on its way to the server; meanwhile none is disabled, so that the focus stays. */
  update({ ways, pending }) {
    for (const [way, button] of this.#buttons) {
      button.hidden = !ways.includes(way);
      button.setAttribute("aria-disabled", String(pending !== null));
      setText(button, pending === way ? WAYS_BACK[way].doing : WAYS_BACK[way].word);
    }
  }
}
