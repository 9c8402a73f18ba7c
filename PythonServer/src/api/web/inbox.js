// What the user does with messages that wait: take one back, or move it up.

import { ApiError, moveMessage, withdrawMessage } from "./api.js";
import { isWaiting } from "./inbox_state.js";

const BETWEEN_MS = [400, 1200, 3000];

export class Inbox {
  #taken = new Set(); // ids
  #moving = new Set();
  #on;

  /** `on.changed()`, `on.answered()`, `on.refused(error, what)`. */
  constructor(on) {
    this.#on = on;
  }

  /** Whether this page has asked for a message back. */
  isTaken(id) {
    return this.#taken.has(id);
  }

  /** Whether something is being done with it. */
  isBusy({ id, fate }) {
    return (this.#taken.has(id) || this.#moving.has(id)) && (fate === "queued" || fate === "held");
  }

  async takeBack(runId, { id }) {
    if (this.#taken.has(id)) return;
    this.#taken.add(id);
    const isDone = await this.#send(() => withdrawMessage(runId, id), "The message was not taken back");
    if (!isDone) this.#taken.delete(id);
    this.#on.changed();
  }

  async moveUp(chat, runId, { id }) {
    const order = [...chat.messages.values()].filter(isWaiting).map((message) => message.id);
    const position = order.indexOf(id) - 1;
    if (position < 0 || this.#moving.has(id)) return;
    this.#moving.add(id);
    await this.#send(() => moveMessage(runId, id, position), "The message was not moved");
    this.#moving.delete(id);
    this.#on.changed();
  }

  /** Both may be sent again: repeating them changes nothing. */
  async #send(post, what) {
    this.#on.changed();
    for (let attempt = 0; ; attempt += 1) {
      try {
        await post();
        this.#on.answered();
        return true;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (!error.isPassing || attempt === BETWEEN_MS.length) {
          this.#on.refused(error, what);
          return false;
        }
        await new Promise((wake) => setTimeout(wake, error.retryAfterMs ?? BETWEEN_MS[attempt]));
      }
    }
  }
}
