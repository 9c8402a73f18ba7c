// Above the message box: the messages that wait, those that came back, and those that were not sent.

import { isWaiting } from "../inbox_state.js";
import { fateWords, modeMark } from "../message_words.js";
import { isSeenTo, noteSeenTo } from "../remembered.js";
import { h, setText, showText } from "./dom.js";

export class TrayView {
  #node;
  #rows = new Map(); // key -> MessageRow
  #on;

  /**
   * `on.back(text)`: a text is to go into the message box. `on.retry(item)`; `on.changed()`: draw it anew; `on.left()`:
   * the focus has lost its row.
   */
  constructor(node, on) {
    this.#node = node;
    this.#on = on;
  }

  update(conversation) {
    const shown = new Map([...this.#cameBack(conversation), ...this.#waiting(conversation), ...this.#unsent(conversation)]);
    const hadFocus = this.#node.contains(document.activeElement) ? document.activeElement : null;
    for (const key of this.#rows.keys()) if (!shown.has(key)) this.#drop(key);
    let previous = null;
    for (const [key, about] of shown) {
      const row = this.#row(key);
      row.update(about);
      if (row.node.parentNode === null || row.node.previousElementSibling !== previous) {
        if (previous === null) this.#node.prepend(row.node);
        else previous.after(row.node);
      }
      previous = row.node;
    }
    this.#node.hidden = shown.size === 0;
    if (hadFocus !== null && hadFocus !== document.activeElement) this.#focusAgain(hadFocus);
  }

  /** A row that moves, or goes, loses the focus. */
  #focusAgain(node) {
    if (this.#node.contains(node) && !node.hidden) node.focus();
    else this.#on.left();
  }

  #waiting(conversation) {
    const { chat, inbox, runId } = conversation;
    const waiting = [...chat.messages.values()].filter(isWaiting);
    return waiting.map((message, place) => [message.id, {
      text: message.text, fate: message.fate, words: fateWords(message, chat.phase === "parked"),
      mark: modeMark(message), id: message.id, isBusy: inbox.isBusy(message),
      buttons: [
        place > 0 && ["Move up", () => inbox.moveUp(chat, runId, message)],
        ["Take back", () => inbox.takeBack(runId, message)],
      ],
    }]);
  }

  #unsent({ outbox, turn }) {
    const items = outbox.unconfirmed().filter((item) => item.error !== null || turn !== null);
    return items.map((item) => [item.id, {
      text: item.text, fate: item.error === null ? "sending" : "unsent",
      words: item.error === null ? "sending…" : `not sent: ${item.error.detail}`,
      buttons: item.error === null ? [] : [
        ["Try again", () => this.#on.retry(item)],
        ["Discard", () => outbox.discard(item)],
      ],
    }]);
  }

  /** Those of earlier runs of the session, too: they are nowhere else. */
  #cameBack({ chats }) {
    const messages = chats.flatMap((each) => [...each.messages.values()]);
    const left = messages.filter((message) => !isWaiting(message) && !isSeenTo(message.id));
    return left.map((message) => [message.id, {
      text: message.text, fate: message.fate, words: fateWords(message), id: message.id,
      buttons: [
        ["Write it again", () => {
          this.#on.back(message.text);
          this.#see(message);
        }],
        ["Dismiss", () => this.#see(message)],
      ],
    }]);
  }

  #see({ id }) {
    noteSeenTo(id);
    this.#on.changed();
  }

  #row(key) {
    if (!this.#rows.has(key)) this.#rows.set(key, new MessageRow());
    return this.#rows.get(key);
  }

  #drop(key) {
    this.#rows.get(key).node.remove();
    this.#rows.delete(key);
  }
}

class MessageRow {
  node;
  #text = h("div", { class: "bubble" });
  #mark = h("span", { class: "mark", hidden: true });
  #words = h("span", {});
  #buttons = [];
  #fate = h("p", { class: "fate" }, this.#mark, this.#words);

  constructor() {
    this.node = h("li", { class: "pending" }, this.#text, this.#fate);
  }

  update({ text, fate, words, mark = null, buttons, isBusy = false, id = null }) {
    this.node.dataset.fate = fate;
    if (id !== null) this.node.dataset.messageId = id;
    setText(this.#text, text);
    this.#text.title = text.length > 80 ? text : "";
    showText(this.#mark, mark);
    setText(this.#words, words);
    buttons.forEach((button, index) => this.#button(index).update(button || null, isBusy));
    this.#buttons.slice(buttons.length).forEach((button) => button.update(null, isBusy));
  }

  #button(index) {
    if (this.#buttons[index] === undefined) {
      this.#buttons[index] = new RowButton();
      this.#fate.append(this.#buttons[index].node);
    }
    return this.#buttons[index];
  }
}

class RowButton {
  node = h("button", { type: "button", class: "quiet small", hidden: true });
  #press = () => {};

  constructor() {
    this.node.addEventListener("click", () => this.#press());
  }

  update(button, isBusy) {
    this.node.hidden = button === null;
    if (button === null) return;
    setText(this.node, button[0]);
    this.node.setAttribute("aria-disabled", String(isBusy)); // not disabled: it keeps the focus
    [, this.#press] = button;
  }
}
