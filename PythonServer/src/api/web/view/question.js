// The card of a question to the user: what is asked, the ways to answer while it waits, and how it ended.

import { renderMarkdown } from "../markdown.js";
import { questionState, timeLeft } from "../question_words.js";
import { callState } from "../tool_words.js";
import { h, icon, setText, showText } from "./dom.js";
import { QuestionForm } from "./question_form.js";

export class QuestionCard {
  node;
  #call;
  #title = h("span", { class: "tool-name" }, "Question");
  #state = h("span", { class: "goal-state" });
  #left = h("span", { class: "time muted" });
  #text = h("div", { class: "text question-text" });
  #error = h("p", { class: "tool-note", role: "alert", hidden: true });
  #end = h("div", { class: "question-end", hidden: true });
  #form = null;
  #shown = "";

  constructor(call) {
    this.#call = call;
    this.node = h("section", { class: "tool question", "data-call-id": call.id, tabindex: "-1" },
      h("div", { class: "tool-head" }, this.#title, this.#state, this.#left), this.#text, this.#error, this.#end);
  }

  /** `isStopping`: its goal, or something around it, is being stopped. */
  update(call, turn, isStopping, stops) {
    const { question } = call;
    if (question === null) return this.#showCall(call, isStopping);
    if (this.#form === null) this.#build(question);
    const { isSending, error } = stops.answerOf(question);
    const isOpen = question.end === null && !isStopping;
    this.#showState(questionState(question, isStopping, isSending), isOpen ? "open" : question.end ?? "stopping");
    this.#form.update(isOpen, isSending, stops);
    showText(this.#error, error === null ? null : `Your answer was not taken: ${error}.`.replace(/\.\.$/, "."));
    if (question.end !== null) this.#showEnd(question);
    return undefined;
  }

  tick(now) {
    if (this.#call.question !== null) setText(this.#left, timeLeft(this.#call.question, now));
  }

  #build(question) {
    this.#text.append(renderMarkdown(question.text));
    this.#form = new QuestionForm(question, () => this.node.focus());
    this.#error.before(this.#form.node);
  }

  #showState({ icon: name, word }, state) {
    if (this.#shown === name + word) return;
    this.#shown = name + word;
    this.node.dataset.state = state;
    this.node.setAttribute("aria-label", `Question, ${word}`);
    this.#state.replaceChildren(icon(name), h("span", { class: "state-word" }, word));
  }

  #showEnd({ answer, comment }) {
    if (!this.#end.hidden || (answer === null && comment === null)) return;
    this.#end.hidden = false;
    this.#end.append(...[
      answer === null ? null : h("div", { class: "bubble" }, h("span", { class: "sr-only" }, "Your answer: "), answer),
      comment === null ? null : h("p", { class: "muted" }, `Your comment: ${comment}`),
    ].filter(Boolean));
  }

  /** It has not been asked yet, or never was. */
  #showCall(call, isStopping) {
    const { icon: name, word } = callState(call, isStopping);
    this.#showState({ icon: name, word: call.state === "running" ? "asking" : word }, call.state);
    showText(this.#error, call.state === "failed" ? call.content : null);
  }
}
