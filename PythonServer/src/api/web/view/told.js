// What the user said to a turn at work, as a bubble at the place where the model met it.

import { toldWords } from "../message_words.js";
import { h, icon } from "./dom.js";

export function toldView(message) {
  return h("div", { class: "told", "data-mode": message.mode },
    message.cutsText ? h("p", { class: "cut muted" }, icon("cut"), h("span", {}, "interrupted by your correction")) : null,
    h("div", { class: "user" },
      h("span", { class: "sr-only" }, "You:"), h("div", { class: "bubble" }, message.text),
      h("p", { class: "told-how muted" }, toldWords(message))));
}

/** A part of a goal; it never changes. */
export class ToldPart {
  node;

  constructor(part) {
    this.node = toldView(part);
  }

  update() {}

  tick() {}
}

/** What the goals do not show: it was said before there were any, or to none of them. It stands behind the message. */
export class ToldList {
  node = h("div", { class: "told-list", hidden: true });
  #shown = "";

  update(turn) {
    if (turn.told.length === 0) return;
    const goals = [...turn.goals.values(), ...turn.delegated.values()];
    const inGoals = new Set(goals.flatMap(({ parts, upcoming }) => [...parts, ...upcoming]).map(({ id }) => id));
    const left = isInMessages(turn, goals) ? [] : turn.told.filter(({ id }) => !inGoals.has(id));
    const shown = left.map(({ id }) => id).join(" ");
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.node.hidden = left.length === 0;
    this.node.replaceChildren(...left.map(toldView));
  }
}

/** Of a turn from elsewhere only its messages are known, and these show it in its place. */
function isInMessages(turn, goals) {
  const hasParts = goals.some(({ parts }) => parts.length > 0);
  return turn.state === "completed" && !hasParts && turn.messages.some(({ role }) => role === "user");
}
