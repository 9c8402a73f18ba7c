// The ways to answer a question: one of its options or a text, with a comment if there is something to add; or to skip it.

import { getDraft, keepDraft } from "../remembered.js";
import { h, setText } from "./dom.js";

const SHORT = 28; // characters of an option that may stand beside another

export class QuestionForm {
  node;
  #question;
  #stops = null;
  #isSending = false;
  #onGone;
  #answer = null;
  #comment = h("textarea", { rows: "1", class: "comment", placeholder: "A comment, if you like", "aria-label": "Comment" });
  #addComment = h("button", { type: "button", class: "link", "aria-expanded": "false" });
  #buttons = [];

  /** `onGone()`: it goes away, and had the focus. */
  constructor(question, onGone) {
    this.#question = question;
    this.#onGone = onGone;
    this.#comment.value = getDraft(this.#commentKey);
    this.#comment.addEventListener("input", () => keepDraft(this.#commentKey, this.#comment.value));
    this.#showComment(this.#comment.value !== "");
    this.#addComment.addEventListener("click", () => {
      this.#showComment(this.#comment.hidden);
      if (!this.#comment.hidden) this.#comment.focus();
    });
    const skip = this.#button("Skip", "quiet", () => this.#send({ disposition: "declined" }));
    skip.title = "Go on without an answer";
    this.node = h("form", { class: "question-form", hidden: true },
      question.options === null ? this.#textBox() : this.#options(question.options),
      this.#comment, h("div", { class: "question-foot" }, this.#addComment, skip));
    this.node.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#sendText();
    });
    this.node.addEventListener("keydown", (event) => this.#onKey(event));
  }

  update(isOpen, isSending, stops) {
    this.#stops = stops;
    this.#isSending = isSending;
    if (!isOpen && !this.node.hidden) this.#close();
    else this.node.hidden = !isOpen;
    for (const button of this.#buttons) button.setAttribute("aria-disabled", String(isSending));
  }

  #close() {
    const hadFocus = this.node.contains(document.activeElement);
    this.node.hidden = true;
    if (this.#question.end !== null) for (const key of [this.#question.id, this.#commentKey]) keepDraft(key, "");
    if (hadFocus) this.#onGone();
  }

  #textBox() {
    this.#answer = h("textarea", { rows: "1", placeholder: "Your answer", "aria-label": "Your answer", enterkeyhint: "send" });
    this.#answer.value = getDraft(this.#question.id);
    this.#answer.addEventListener("input", () => keepDraft(this.#question.id, this.#answer.value));
    const send = this.#button("Answer", "primary", () => {});
    send.type = "submit";
    return h("div", { class: "question-text-answer" }, this.#answer, send);
  }

  #options(options) {
    const isList = options.some((option) => option.length > SHORT);
    return h("div", { class: isList ? "options is-list" : "options", role: "group", "aria-label": "Possible answers" },
      ...options.map((option) => this.#button(option, "option", () => this.#send({ disposition: "answered", answer: option }))));
  }

  #button(words, style, onPress) {
    const button = h("button", { type: "button", class: style, onclick: onPress }, words);
    this.#buttons.push(button);
    return button;
  }

  #showComment(isShown) {
    this.#comment.hidden = !isShown;
    this.#addComment.setAttribute("aria-expanded", String(isShown));
    setText(this.#addComment, isShown ? "No comment" : "Add a comment");
  }

  get #commentKey() {
    return `${this.#question.id}.comment`;
  }

  #onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target !== this.#answer) return;
    event.preventDefault();
    this.#sendText();
  }

  #sendText() {
    if (this.#answer === null) return; // one of the options is to be chosen
    if (this.#answer.value.trim() === "") this.#answer.focus();
    else this.#send({ disposition: "answered", answer: this.#answer.value });
  }

  #send(resolution) {
    if (this.#isSending) return;
    const comment = this.#comment.hidden ? "" : this.#comment.value.trim();
    this.#stops.answer(this.#question, comment === "" ? resolution : { ...resolution, comment });
  }
}
