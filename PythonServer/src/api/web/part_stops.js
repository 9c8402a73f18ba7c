// What the user does to a turn's parts, as the page sends it: stop one goal or one tool call, and answer a question.
// The turn goes on.

import { cancelCall, cancelGoal } from "./api.js";

const POST = { goal: cancelGoal, call: cancelCall };

/** Those of one turn. `kind` is `goal` or `call`. */
export class PartStops {
  #conversation;
  #turnId;

  constructor(conversation, turnId) {
    this.#conversation = conversation;
    this.#turnId = turnId;
  }

  /** Whether this part is being stopped by itself: the page has asked for it, or the events say so. */
  isAsked(kind, part) {
    return part.stopCause !== null || this.#conversation.stopper.isPartWanted(this.#key(kind, part.id));
  }

  /** Harmless if it was asked before. */
  stop(kind, { id }) {
    const { runId, stopper } = this.#conversation;
    stopper.stopPart(this.#key(kind, id), () => POST[kind](runId, id, this.#turnId));
  }

  /** Answer a question, or decline it: `{disposition, answer?, comment?}`. */
  answer(question, resolution) {
    const { runId, answers } = this.#conversation;
    answers.send(runId, question.id, resolution);
  }

  /** How an answer of this page fares, `{isSending, error}`. */
  answerOf({ id }) {
    const { answers } = this.#conversation;
    return { isSending: answers.isSending(id), error: answers.errorOf(id) };
  }

  #key(kind, id) {
    return `${this.#turnId} ${kind} ${id}`; // ids of goals come again in other turns
  }
}
