// Above the message box: the messages that wait, those that came back, and those that were not sent.

import { isWaiting } from "../inbox_state.js";
import { LetGo } from "../let_go.js";
import { fateWords, modeMark } from "../message_words.js";
import { refusalWords } from "../refusal_words.js";
import { forgetSeenTo, isSeenTo, noteSeenTo } from "../remembered.js";
import { MessageRow } from "./message_row.js";

export class TrayView {
  #node;
  #rows = new Map(); // key -> MessageRow
  #on;
  #letGo;

  /**
   * `on.back(text)`: a text is to go into the message box. `on.retry(item)`; `on.changed()`: draw it anew; `on.left()`:
   * the focus has lost its row.
   */
  constructor(node, on) {
    this.#node = node;
    this.#on = on;
    this.#letGo = new LetGo(() => on.changed());
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
    if (hadFocus !== null && (hadFocus !== document.activeElement || hadFocus.hidden)) this.#focusAgain(hadFocus);
  }

  /** A row that moves, or goes, loses the focus; so does a button that makes way for another. */
  #focusAgain(node) {
    const instead = this.#node.contains(node) ? node.parentNode.querySelector("button:not([hidden])") : null;
    if (instead === null) this.#on.left();
    else if (node.hidden) instead.focus();
    else node.focus();
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
    return items.map((item) => [item.id, this.#unsentRow(item, outbox)]);
  }

  #unsentRow(item, outbox) {
    const { id, text, error } = item;
    if (error === null) return { text, fate: "sending", words: "sending…", buttons: [] };
    if (item.isDiscarded) return this.#letGoRow(id, text, "discarded", () => outbox.discard(item, false));
    const discard = () => {
      this.#letGo.add(id, () => outbox.forget(item));
      outbox.discard(item);
    };
    return {
      text, fate: "unsent", words: `not sent: ${refusalWords(error)}`,
      buttons: [["Try again", () => this.#on.retry(item)], ["Discard", discard]],
    };
  }

  /** Those of earlier runs of the session, too: they are nowhere else. */
  #cameBack({ chats }) {
    const messages = chats.flatMap((each) => [...each.messages.values()]);
    const isLeft = ({ id }) => !isSeenTo(id) || this.#letGo.has(id);
    const left = messages.filter((message) => !isWaiting(message) && isLeft(message));
    return left.map((message) => [message.id, this.#cameBackRow(message)]);
  }

  #cameBackRow(message) {
    const { id, text, fate } = message;
    if (isSeenTo(id)) return this.#letGoRow(id, text, "dismissed", () => this.#after(() => forgetSeenTo(id)));
    const writeAgain = () => this.#after(() => {
      this.#on.back(text);
      noteSeenTo(id);
    });
    const dismiss = () => this.#after(() => {
      this.#letGo.add(id);
      noteSeenTo(id);
    });
    const buttons = [["Write it again", writeAgain], ["Dismiss", dismiss]];
    return { text, fate, words: fateWords(message), id, buttons };
  }

  #letGoRow(id, text, words, restore) {
    const undo = () => {
      this.#letGo.takeBack(id);
      restore();
    };
    return { text, fate: "let-go", words, buttons: [["Undo", undo]] };
  }

  #after(change) {
    change();
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
