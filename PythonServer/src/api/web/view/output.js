// The output of a tool: text as it comes, in a box that shows its end. A long one can be opened.

import { h, setText, showText } from "./dom.js";

const LONG_LINES = 10;
const LONG_CHARS = 1000;
const NEAR_END_PX = 24;

export class OutputView {
  node;
  #box;
  #gone = h("p", { class: "muted tool-gone", hidden: true });
  #more = h("button", { type: "button", class: "link", "aria-expanded": "false", hidden: true });
  #shown = []; // {text, length} of each piece
  #cut = 0;
  #breaks = 0;
  #chars = 0;

  constructor(toolName) {
    this.#box = h("pre", { class: "tool-output", role: "group", "aria-label": `Output of ${toolName}` });
    this.#more.addEventListener("click", () => this.#open(this.#more.getAttribute("aria-expanded") === "false"));
    this.node = h("div", { hidden: true }, this.#gone, this.#box, this.#more);
  }

  /** `{output, cut}` of a call. */
  update({ output, cut }) {
    if (cut !== this.#cut) this.#startOver(cut);
    const last = Math.max(0, this.#shown.length - 1);
    const isSame = output.length === this.#shown.length && output[last]?.text.length === this.#shown[last]?.length;
    if (isSame) return;
    this.node.hidden = false;
    const isAtEnd = this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight < NEAR_END_PX;
    for (let index = last; index < output.length; index += 1) this.#grow(index, output[index]);
    this.#offerMore();
    if (isAtEnd) this.#box.scrollTop = this.#box.scrollHeight;
  }

  /** The beginning is gone, so nothing is where it was. */
  #startOver(cut) {
    this.#cut = cut;
    this.#shown = [];
    this.#breaks = 0;
    this.#chars = 0;
    this.#box.replaceChildren();
    showText(this.#gone, `${cut.toLocaleString("en")} earlier characters are not shown`);
  }

  #grow(index, { stream, text }) {
    const known = this.#shown[index] ?? this.#add(index, stream);
    const more = text.slice(known.length);
    known.text.appendData(more); // what is selected stays selected
    known.length = text.length;
    this.#chars += more.length;
    this.#breaks += more.split("\n").length - 1;
  }

  #add(index, stream) {
    const text = document.createTextNode("");
    this.#box.append(h("span", { class: stream }, text));
    this.#shown[index] = { text, length: 0 };
    return this.#shown[index];
  }

  #offerMore() {
    const isLong = this.#breaks > LONG_LINES || this.#chars > LONG_CHARS;
    this.#more.hidden = !isLong;
    if (!isLong) return;
    this.#box.tabIndex = 0; // it scrolls, so the keyboard has to get there
    this.#open(this.#more.getAttribute("aria-expanded") === "true");
  }

  #open(isOpen) {
    this.#more.setAttribute("aria-expanded", String(isOpen));
    this.#box.classList.toggle("is-open", isOpen);
    setText(this.#more, isOpen ? "Show less" : `Show more of ${lineWords(this.#breaks)}`);
    if (!isOpen) this.#box.scrollTop = this.#box.scrollHeight;
  }
}

const lineWords = (breaks) => (breaks < 2 ? "a long line" : `${breaks.toLocaleString("en")} lines`);
