// The message box: what is being written, and what it means to a turn at work.

import { MODES, USUAL_MODE } from "../message_words.js";
import { NEW, getDraft, keepDraft } from "../remembered.js";
import { h, setText } from "./dom.js";
import { Room } from "./room.js";

export class ComposerView {
  #nodes;
  #runId = null;
  #turnId = null;
  #isTalkedTo = false;
  #mode = USUAL_MODE;
  #choices = new Map(); // mode -> radio button
  #means; // Room

  /** `nodes` are the elements `form, box, send, means, modes, explained`. */
  constructor(nodes, onSend) {
    this.#nodes = nodes;
    const { form, box, means, modes } = nodes;
    this.#means = new Room(means);
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
    this.#choose(USUAL_MODE);
  }

  /** What a message that is sent now means to the turn at work. To cut that off is chosen for one message only. */
  useMode() {
    const mode = this.#mode;
    if (MODES[mode].isCutting) this.#choose(USUAL_MODE);
    return mode;
  }

  /** Another chat: what was being written in it. */
  open(runId) {
    this.#means.close();
    this.#runId = runId;
    this.#nodes.box.value = getDraft(runId ?? NEW);
  }

  /** The chat has got its run, or another one; what is being written goes on. */
  moveTo(runId) {
    keepDraft(this.#runId ?? NEW, "");
    this.#runId = runId;
    this.#keep();
  }

  update({ isTalkedTo, isTalkative, turn, questions }) {
    const { box } = this.#nodes;
    if (isTalkedTo) this.#means.fill();
    else if (isTalkative) this.#means.vacate();
    else this.#means.leave();
    this.#isTalkedTo = isTalkedTo;
    // What was chosen is about one turn, and its successor may begin while the user writes.
    const isSameTurn = this.#turnId === (turn?.id ?? null);
    this.#turnId = turn?.id ?? null;
    this.#choose(isSameTurn ? this.#mode : USUAL_MODE);
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
    const input = h("input", { type: "radio", name: "mode", value: mode });
    input.addEventListener("change", () => this.#choose(mode));
    this.#choices.set(mode, input);
    return h("label", { title: MODES[mode].explained }, input, h("span", {}, word));
  }

  #choose(mode) {
    const { send, explained } = this.#nodes;
    this.#mode = mode;
    this.#choices.get(mode).checked = true;
    setText(explained, MODES[mode].explained);
    setText(send, MODES[this.#isTalkedTo ? mode : USUAL_MODE].send);
  }
}
