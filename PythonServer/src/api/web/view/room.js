// The room of something that comes and goes. It outlives what was in it by a moment: what stands above stays where it
// is, so that a click on what has just gone does not meet what would have slid under the pointer.

const MOMENT_MS = 1000;

export class Room {
  #node;
  #timer = 0;

  constructor(node) {
    this.#node = node;
  }

  /** Show what is in it. */
  fill() {
    this.#keep(false);
  }

  /** Nothing is in it, or not yet. */
  vacate() {
    this.#keep(true);
  }

  /** Nothing is in it any more, and in a moment the room is gone as well. */
  leave() {
    if (this.#node.hidden || this.#timer !== 0) return;
    this.vacate();
    this.#timer = setTimeout(() => this.close(), MOMENT_MS);
  }

  /** It is gone at once. */
  close() {
    this.#keep(true);
    this.#node.hidden = true;
  }

  #keep(isVacant) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#node.hidden = false;
    this.#node.classList.toggle("is-vacant", isVacant);
  }
}
