// A message above the message box: its text, how it waits or why it does not, and what may be done with it.

import { h, setText, showText } from "./dom.js";

/** All that a row may offer, in this order. */
const BUTTONS = ["Move up", "Take back", "Try again", "Discard", "Write it again", "Dismiss", "Undo"];

export class MessageRow {
  node;
  #text = h("div", { class: "bubble" });
  #mark = h("span", { class: "mark", hidden: true });
  #words = h("span", {});
  #buttons = new Map(BUTTONS.map((word) => [word, new RowButton(word)]));
  #fate = h("p", { class: "fate" }, this.#mark, this.#words, ...[...this.#buttons.values()].map(({ node }) => node));

  constructor() {
    this.node = h("li", { class: "pending" }, this.#text, this.#fate);
  }

  /** `buttons` are pairs of one of the words and what it does, or false; `id` is that of a message at the server. */
  update({ text, fate, words, mark = null, buttons, isBusy = false, id = null }) {
    this.node.dataset.fate = fate;
    if (id !== null) this.node.dataset.messageId = id;
    setText(this.#text, text);
    this.#text.title = text.length > 80 ? text : "";
    showText(this.#mark, mark);
    setText(this.#words, words);
    const presses = new Map(buttons.filter(Boolean));
    for (const [word, button] of this.#buttons) button.update(presses.get(word) ?? null, isBusy);
  }
}

/** Each word has a button of its own: a second press is never one of another word. */
class RowButton {
  node;
  #press = null;

  constructor(word) {
    this.node = h("button", { type: "button", class: "quiet small", hidden: true }, word);
    this.node.addEventListener("click", () => this.#press());
  }

  /** `press` is what it does; null: it is not offered. */
  update(press, isBusy) {
    this.#press = press;
    this.node.hidden = press === null;
    this.node.setAttribute("aria-disabled", String(isBusy)); // not disabled: it keeps the focus
  }
}
