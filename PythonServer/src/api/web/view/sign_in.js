// Asks for a token, in place of the chat.

import { setToken } from "../token.js";
import { showText } from "./dom.js";

export class SignIn {
  #nodes;

  /** `nodes` are the elements `section, form, token, why, app`. `onToken()`: there is one now. */
  constructor(nodes, onToken) {
    this.#nodes = nodes;
    nodes.form.addEventListener("submit", (event) => {
      event.preventDefault();
      // The whole address that the server printed is as good as the token in it.
      setToken(nodes.token.value.replace(/^.*token=/, ""));
      nodes.token.value = "";
      onToken();
    });
  }

  /** `why` is the server's reason, or null. */
  ask(why) {
    this.#show(true);
    showText(this.#nodes.why, why);
    this.#nodes.token.focus();
  }

  close() {
    this.#show(false);
  }

  #show(isAsked) {
    this.#nodes.app.hidden = isAsked;
    this.#nodes.section.hidden = !isAsked;
  }
}
