// Answers to questions on their way to the server. The first answer that it gets stands.

import { ApiError, resolveQuestion } from "./api.js";

const BETWEEN_MS = [400, 1200, 3000];

export class Answers {
  #sent = new Map(); // question id -> {isSending, error}
  #on;

  /** `on.changed()`, `on.answered()`. */
  constructor(on) {
    this.#on = on;
  }

  isSending(questionId) {
    return this.#sent.get(questionId)?.isSending ?? false;
  }

  /** Why the server did not take the answer, in its words; or null. */
  errorOf(questionId) {
    return this.#sent.get(questionId)?.error ?? null;
  }

  /** `resolution` is `{disposition, answer?, comment?}`. */
  async send(runId, questionId, resolution) {
    if (this.isSending(questionId)) return;
    this.#sent.set(questionId, { isSending: true, error: null });
    this.#on.changed();
    const error = await this.#persist(runId, questionId, resolution);
    this.#sent.set(questionId, { isSending: false, error: error?.detail ?? null });
    this.#on.answered();
    this.#on.changed();
  }

  async #persist(runId, questionId, resolution) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        await resolveQuestion(runId, questionId, resolution);
        return null;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        // It had been taken, and only the word of it was lost.
        if (attempt > 0 && error.problem.settled === resolution.disposition) return null;
        if (!error.isPassing || attempt === BETWEEN_MS.length) return error;
        await new Promise((wake) => setTimeout(wake, error.retryAfterMs ?? BETWEEN_MS[attempt]));
      }
    }
  }
}
