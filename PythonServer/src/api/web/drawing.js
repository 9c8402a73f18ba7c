// When the page is drawn: at once after what the user did, else soon, and less often where drawing takes long.

const BETWEEN_MS = 40; // at least

export class Drawing {
  #draw;
  #turnIds = new Set(); // null: all
  #timer = 0;
  #cost = 0;

  /** `draw(turnIds)`: these turns have changed; null means any. */
  constructor(draw) {
    this.#draw = draw;
  }

  /** `turnIds` is null if the user did something: it shows at once. */
  ask(turnIds) {
    if (turnIds === null) {
      this.#turnIds = null;
      this.now();
      return;
    }
    for (const id of turnIds) this.#turnIds.add(id);
    if (this.#timer === 0) this.#timer = setTimeout(() => this.now(), Math.max(BETWEEN_MS, this.#cost * 4));
  }

  now() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const turnIds = this.#turnIds;
    this.#turnIds = new Set();
    const started = performance.now();
    this.#draw(turnIds);
    this.#cost = performance.now() - started;
  }
}
