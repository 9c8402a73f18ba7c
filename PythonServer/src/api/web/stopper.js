// The stop as the page sends it. It is latched here at the click, so the page says "Stopping…" before the server does,
// and it is never taken back: what does not reach the server is sent again.

import { ApiError, cancelRun, terminateRun } from "./api.js";

const BETWEEN_MS = [300, 800, 2000, 4000];
/** The turn, or the whole run, was over before the stop came: nothing is left to do. */
const TOO_LATE = new Set(["turn_is_over", "run_is_over"]);

export class Stopper {
  #wanted = new Map(); // turn id, "run", or the key of a part -> wakes its request if that waits to be sent again
  #on;

  /** `on.changed()`, `on.answered()`, `on.refused(error)`, `on.unreachable(error)`. */
  constructor(on) {
    this.#on = on;
  }

  isWanted(turnId) {
    return this.#wanted.has(turnId) || this.#wanted.has("run");
  }

  /** Whether this part was to be stopped by itself. */
  isPartWanted(key) {
    return this.#wanted.has(key);
  }

  get isEnding() {
    return this.#wanted.has("run");
  }

  /** Stop this turn and no other. Asking again is harmless: it only hurries up a request that has to be repeated. */
  stopTurn(runId, turnId) {
    this.#want(turnId, () => cancelRun(runId, turnId));
  }

  /** Stop a part of a turn. */
  stopPart(key, post) {
    this.#want(key, post);
  }

  /** End the run, and its turn with it. */
  endRun(runId) {
    this.#want("run", () => terminateRun(runId));
  }

  #want(key, post) {
    const wake = this.#wanted.get(key);
    if (wake !== undefined) return wake();
    this.#wanted.set(key, () => {});
    this.#on.changed();
    this.#send(key, post);
  }

  async #send(key, post) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        await post();
        return this.#on.answered();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (TOO_LATE.has(error.code)) return this.#on.answered();
        if (!error.isPassing) {
          if (error.status < 500) this.#wanted.delete(key); // it was not accepted, so nothing is stopping
          this.#on.refused(error);
          return this.#on.changed();
        }
        if (attempt > 0) this.#on.unreachable(error);
        await this.#pause(key, BETWEEN_MS[Math.min(attempt, BETWEEN_MS.length - 1)]);
      }
    }
  }

  #pause(key, ms) {
    return new Promise((wake) => {
      setTimeout(wake, ms);
      this.#wanted.set(key, wake);
    });
  }
}
