// Going back: ask the newest turn again, take it up where it was stopped, or take it out of the conversation. And
// what else only a parked run takes: have its history shortened, or that taken back.

import { ApiError, compactRun, getRun, regenerateRun, resumeRun, rollBackRun, undoCompaction } from "./api.js";
import { lastMessageTurn, lastTurn } from "./state.js";
import { isOpen } from "./turn_state.js";

const POST = {
  resume: resumeRun, regenerate: regenerateRun, rollback: rollBackRun, compact: compactRun, undo: undoCompaction,
};
/** What a repeated request is told if the first one was done. */
const DONE_BEFORE = new Set(["turn_is_over", "run_is_busy"]);
/** They start no turn. */
const AT_ONCE = new Set(["rollback", "undo"]);
const BETWEEN_MS = [400, 1200, 3000];

/** What the server would do with the newest turn, in the order in which it is offered. */
export function waysBack(chat) {
  const turn = lastMessageTurn(chat);
  if (turn === null || isOpen(turn) || chat.phase !== "parked" || !chat.isInteractive) return [];
  const isAskedAgainOnly = turn.state === "completed" || turn.leftOut !== null;
  return isAskedAgainOnly ? ["regenerate"] : ["resume", "regenerate", "rollback"];
}

/** One way back at a time, from the click until the events show it. */
export class GoingBack {
  /** `{way, turnId, newestId, undone, answer, isStopWanted}` or null. */
  pending = null;
  #on;

  /** `on.changed()`, `on.answered(pending)`, `on.refused(error, way)`. */
  constructor(on) {
    this.#on = on;
  }

  /** Whether a new turn is about to begin. */
  get isStarting() {
    return this.pending !== null && !AT_ONCE.has(this.pending.way);
  }

  /** `turnId` is the newest turn of a message. */
  start(runId, chat, turnId, way) {
    if (this.pending !== null) return;
    const undone = chat.undone.size;
    this.pending = { way, turnId, newestId: lastTurn(chat).id, undone, answer: null, isStopWanted: false };
    this.#on.changed();
    this.#send(runId, this.pending);
  }

  /** Forget what the events show by now. */
  settle(chat) {
    if (this.pending === null || lastTurn(chat) === null) return;
    const { way, turnId, newestId, undone } = this.pending;
    const isOut = way === "rollback" && chat.turns.get(turnId)?.leftOut !== null;
    if (isOut || lastTurn(chat).id !== newestId || chat.undone.size !== undone) this.pending = null;
  }

  async #send(runId, pending) {
    try {
      pending.answer = await this.#persist(runId, pending);
      this.#on.answered(pending);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (this.pending === pending) this.pending = null;
      this.#on.refused(error, pending.way);
    }
  }

  async #persist(runId, { way, turnId }) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await POST[way](runId, turnId);
      } catch (error) {
        // It had been done, and only the answer was lost: the turn is not the newest one any more.
        if (attempt > 0 && DONE_BEFORE.has(error.code)) return getRun(runId);
        const isMoreIfRepeated = way === "undo" && error.status === 0; // it would take back another one
        if (!error.isPassing || isMoreIfRepeated || attempt === BETWEEN_MS.length) throw error;
        await new Promise((wake) => setTimeout(wake, error.retryAfterMs ?? BETWEEN_MS[attempt]));
      }
    }
  }
}
