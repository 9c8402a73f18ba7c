// The list of chats on a narrow screen: it lies over the conversation when it is open.

export class Menu {
  #nodes;

  /** `nodes` are the elements `app, button, shade, first`; `first` gets the focus. */
  constructor(nodes) {
    this.#nodes = nodes;
    nodes.button.addEventListener("click", () => this.#show(!this.#isOpen));
    nodes.shade.addEventListener("click", () => this.close());
  }

  get #isOpen() {
    return !this.#nodes.shade.hidden;
  }

  /** Whether it was open. */
  close() {
    const wasOpen = this.#isOpen;
    if (wasOpen) this.#show(false);
    return wasOpen;
  }

  #show(isOpen) {
    const { app, button, shade, first } = this.#nodes;
    app.classList.toggle("menu-open", isOpen);
    shade.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) first.focus();
  }
}
