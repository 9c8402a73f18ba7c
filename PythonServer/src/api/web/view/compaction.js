// A line in the conversation: from here on the model is told a part of the history as a summary.

import { h, setText, showText } from "./dom.js";

export class CompactionView {
  node;
  #words = h("span", {});
  #tokens = h("span", { class: "muted" });
  #summary = h("div", { class: "summary" });
  #details = h("details", { hidden: true }, h("summary", {}, "what the model is told"), this.#summary);
  #undo = h("button", { type: "button", class: "link", hidden: true }, "Undo");

  constructor(onUndo) {
    this.#undo.addEventListener("click", onUndo);
    this.node = h("div", { class: "compaction", hidden: true },
      h("p", {}, this.#words, " ", this.#tokens, " ", this.#undo), this.#details);
  }

  /** `isUndone`: it was taken back. `offer` is `{isOffered, isPending}` of taking it back. */
  update(turn, isUndone, { isOffered, isPending }) {
    const { compaction } = turn;
    this.node.hidden = compaction === null && !(turn.isCompaction && turn.state !== "cancelled" && turn.state !== "failed");
    if (this.node.hidden) return;
    setText(this.#words, words(compaction, isUndone));
    this.node.classList.toggle("is-undone", isUndone);
    if (compaction === null || compaction.id === null) return;
    showText(this.#tokens, isUndone ? null : tokens(compaction));
    this.#details.hidden = isUndone;
    setText(this.#summary, compaction.summary);
    this.#undo.hidden = !isOffered;
    setText(this.#undo, isPending ? "Taking it back…" : "Undo");
  }
}

function words(compaction, isUndone) {
  if (compaction === null) return "Shortening the history for the model…";
  if (compaction.id === null) return "There was nothing to shorten: the model is told everything.";
  const messages = compaction.count === 1 ? "1 earlier message" : `${compaction.count.toLocaleString("en")} earlier messages`;
  const is = compaction.count === 1 ? "is" : "are";
  if (isUndone) return `${messages} had been told to the model as a summary. That was taken back.`;
  const stay = compaction.count === 1 ? "it stays here." : "they stay here.";
  return `${messages} ${is} now told to the model as a summary; ${stay}`;
}

const tokens = ({ before, after }) => `≈ ${before.toLocaleString("en")} → ${after.toLocaleString("en")} tokens.`;
