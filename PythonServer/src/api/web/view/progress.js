// The line above the message box: what is going on, and the STOP button.

import { FINAL_GOAL } from "../state.js";
import { duration } from "../words.js";
import { icon, setText } from "./dom.js";

const BETWEEN_ESCAPES_MS = 1500;

export class ProgressView {
  #nodes;
  #conversation = null;
  #hintTimer = 0;
  #shownIcon = "";

  /** `nodes` are the elements `line, icon, text, hint, word`. */
  constructor(nodes) {
    this.#nodes = nodes;
  }

  update(conversation, now) {
    this.#conversation = conversation;
    const { line, word } = this.#nodes;
    const isStopping = conversation.isBusy && conversation.isStopping;
    line.hidden = !conversation.isBusy;
    line.classList.toggle("is-stopping", isStopping);
    // Never disabled: it keeps the focus, and a further press hurries up a stop that has to be sent again.
    setText(word, isStopping ? "Stopping…" : "Stop");
    if (!conversation.isBusy) this.#hint("");
    else if (this.#hintTimer === 0) this.#hint(isStopping ? "" : "Esc stops, twice ends the chat");
    this.#nodes.hint.classList.toggle("is-urgent", this.#hintTimer !== 0);
    this.#showIcon(isStopping ? "stopped" : "working");
    this.tick(now);
  }

  tick(now) {
    const conversation = this.#conversation;
    if (!conversation?.isBusy) return;
    setText(this.#nodes.text, progressText(conversation, now));
  }

  /** After the first Esc: for a moment a second one ends the chat. */
  offerEnd() {
    clearTimeout(this.#hintTimer);
    this.#hint("Esc again ends the chat");
    this.#hintTimer = setTimeout(() => {
      this.#hintTimer = 0;
      this.#hint("");
    }, BETWEEN_ESCAPES_MS);
  }

  #hint(text) {
    setText(this.#nodes.hint, text);
  }

  #showIcon(name) {
    if (this.#shownIcon === name) return;
    this.#shownIcon = name;
    this.#nodes.icon.replaceChildren(icon(name));
  }
}

function progressText({ turn, isStopping, stopper }, now) {
  if (isStopping) return stopper.isEnding ? "Ending the chat" : "Stopping the turn";
  if (turn === null) return "Sending";
  const time = duration(now - turn.startedAt);
  const leaves = [...turn.goals.values()].filter((goal) => goal.goals.length === 0);
  if (leaves.length === 0) return `Planning · ${time}`;
  if (leaves.length === 1) return `${leaves[0].retry ? "Retrying" : "Answering"} · ${time}`;
  return `${leaves.filter((goal) => FINAL_GOAL.has(goal.status)).length} of ${leaves.length} goals · ${time}`;
}
