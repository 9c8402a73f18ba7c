// What a screen reader is told: the turning points of a turn, not every word of it.

import { waitingWords } from "../question_words.js";
import { openTurn, lastTurn } from "../state.js";
import { causeWords, leftOutWords, receiptSummary } from "../words.js";
import { setText } from "./dom.js";

export class Announcer {
  #node;
  #last = "";

  constructor(node) {
    this.#node = node;
  }

  /** Another conversation: its state is no news. */
  clear() {
    this.#last = "";
    setText(this.#node, "");
  }

  update(conversation) {
    const words = wordsFor(conversation);
    if (words === this.#last) return;
    this.#last = words;
    setText(this.#node, words);
  }
}

function wordsFor({ chat, isStopping, questions }) {
  if (openTurn(chat) !== null) {
    if (isStopping) return "Stopping";
    if (questions.length > 0) return `${waitingWords(questions.length)}: ${questions[0].question.text}`;
    return openTurn(chat).isCompaction ? "Shortening the history" : "Working on your message";
  }
  const turn = lastTurn(chat);
  if (turn?.leftOut) return `The turn is ${leftOutWords(turn.leftOut)}`;
  switch (turn?.state) {
    case "completed": return turn.isCompaction ? "The history is shortened for the model" : "The answer is complete";
    case "failed": return `The turn failed: ${turn.error ?? ""}`;
    case "cancelled": return `${causeWords(turn.cause)}. ${receiptSummary(turn.receipt)}`;
    default: return "";
  }
}
