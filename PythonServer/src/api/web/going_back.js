// Going back: ask the newest turn again, take it up where it was stopped, or take it out of the conversation.

import { ApiError, getRun, regenerateRun, resumeRun, rollBackRun } from "./api.js";
import { lastTurn } from "./state.js";
import { isOpen } from "./turn_state.js";

const POST = { resume: resumeRun, regenerate: regenerateRun, rollback: rollBackRun };
const BETWEEN_MS = [400, 1200, 3000];

/** What the server would do with the newest turn, in the order in which it is offered. */
export function waysBack(chat) {
  const turn = lastTurn(chat);
  if (turn === null || isOpen(turn) || chat.phase !== "parked" || !chat.isInteractive) return [];
  const isAskedAgainOnly = turn.state === "completed" || turn.leftOut !== null;
  return isAskedAgainOnly ? ["regenerate"] : ["resume", "regenerate", "rollback"];
}

/** One way back at a time, from the click until the events show it. */
export class GoingBack {
  /** `{way, turnId, answer, isStopWanted}` or null. */
  pending = null;
  #on;

  /** `on.changed()`, `on.answered(pending)`, `on.refused(error, way)`. */
  constructor(on) {
    this.#on = on;
  }

  /** Whether a new turn is about to begin. */
  get isStarting() {
    return this.pending !== null && this.pending.way !== "rollback";
  }

  start(runId, turnId, way) {
    if (this.pending !== null) return;
    this.pending = { way, turnId, answer: null, isStopWanted: false };
    this.#on.changed();
    this.#send(runId, this.pending);
  }

  /** Forget what the events show by now. */
  settle(chat) {
    const newest = lastTurn(chat);
    if (this.pending === null || newest === null) return;
    const isOut = this.pending.way === "rollback" && newest.leftOut !== null;
    if (isOut || newest.id !== this.pending.turnId) this.pending = null;
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
        if (attempt > 0 && error.code === "turn_is_over") return getRun(runId);
        if (!error.isPassing || attempt === BETWEEN_MS.length) throw error;
        await new Promise((wake) => setTimeout(wake, error.retryAfterMs ?? BETWEEN_MS[attempt]));
      }
    }
  }
}
