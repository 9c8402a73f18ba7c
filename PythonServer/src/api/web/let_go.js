// The texts that the user has let go of: for a moment each can be had back.

const MOMENT_MS = 10000;

export class LetGo {
  #timers = new Map(); // id -> timer
  #onOver;

  /** `onOver()`: one is gone for good. */
  constructor(onOver) {
    this.#onOver = onOver;
  }

  has(id) {
    return this.#timers.has(id);
  }

  /** `forget()` is called when it is gone for good. */
  add(id, forget = () => {}) {
    this.takeBack(id);
    this.#timers.set(id, setTimeout(() => {
      this.#timers.delete(id);
      forget();
      this.#onOver();
    }, MOMENT_MS));
  }

  takeBack(id) {
    clearTimeout(this.#timers.get(id));
    this.#timers.delete(id);
  }
}
