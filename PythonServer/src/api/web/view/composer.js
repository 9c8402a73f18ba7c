// The message box: what is being written, and what it means to a turn at work.

import { MODES } from "../message_words.js";
import { NEW, getDraft, getMode, keepDraft, keepMode } from "../remembered.js";
import { h, setText } from "./dom.js";

export class ComposerView {
  #nodes;
  #runId = null;
  #mode = MODES[getMode()] === undefined ? "queue" : getMode();

  /** `nodes` are the elements `form, box, send, modes, explained, keys`. */
  constructor(nodes, onSend) {
    this.#nodes = nodes;
    const { form, box, modes } = nodes;
    modes.append(...Object.entries(MODES).map(([mode, { word }]) => this.#choice(mode, word)));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onSend();
    });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      onSend();
    });
    box.addEventListener("input", () => this.#keep());
    this.#showMode();
  }

  /** What a message means to the turn at work, as the user has chosen. */
  get mode() {
    return this.#mode;
  }

  /** Another chat: what was being written in it. */
  open(runId) {
    this.#runId = runId;
    this.#nodes.box.value = getDraft(runId ?? NEW);
  }

  /** The chat has got its run, or another one; what is being written goes on. */
  moveTo(runId) {
    keepDraft(this.#runId ?? NEW, "");
    this.#runId = runId;
    this.#keep();
  }

  update({ isTalkedTo, questions }) {
    const { modes, keys, box } = this.#nodes;
    modes.parentNode.hidden = !isTalkedTo;
    keys.hidden = isTalkedTo;
    this.#showMode(isTalkedTo);
    const words = questions.length > 0 ? "Or write a message" : "Write a message";
    if (box.placeholder !== words) box.placeholder = words;
  }

  /** The text, which is gone from the box then; null if there is none. */
  take() {
    const { box } = this.#nodes;
    const text = box.value;
    if (text.trim() === "") return null;
    box.value = "";
    this.#keep();
    box.focus();
    return text;
  }

  /** Put a text into the box if that is empty. Whether it was. */
  putBack(text) {
    const { box } = this.#nodes;
    if (box.value.trim() !== "") return false;
    box.value = text;
    this.#keep();
    return true;
  }

  /** Add a text to what is in the box. */
  write(text) {
    const { box } = this.#nodes;
    if (!this.putBack(text)) box.value = `${box.value}\n${text}`;
    this.#keep();
    box.focus();
  }

  focus() {
    this.#nodes.box.focus();
  }

  #keep() {
    keepDraft(this.#runId ?? NEW, this.#nodes.box.value);
  }

  #choice(mode, word) {
    const input = h("input", { type: "radio", name: "mode", value: mode, checked: mode === this.#mode });
    input.addEventListener("change", () => {
      this.#mode = mode;
      keepMode(mode);
      this.#showMode(true);
    });
    return h("label", { title: MODES[mode].explained }, input, h("span", {}, word));
  }

  #showMode(isTalkedTo = false) {
    const { send, explained } = this.#nodes;
    setText(explained, MODES[this.#mode].explained);
    setText(send, isTalkedTo && this.#mode === "interrupt" ? "Stop and send" : "Send");
  }
}
