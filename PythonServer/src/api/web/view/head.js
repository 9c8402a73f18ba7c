// The line above the conversation, and the tab: what the chat is called, and how its run stands.

import { runStateWords } from "../words.js";
import { setText } from "./dom.js";
import { chatTitle } from "./sidebar.js";

export class HeadView {
  #title;
  #badge;

  constructor(title, badge) {
    this.#title = title;
    this.#badge = badge;
  }

  update({ runId, state, title, chats }) {
    const isNew = runId === null && title === null;
    const name = isNew ? "New chat" : chatTitle({ metadata: { title }, created_at: beginning(chats) });
    setText(this.#title, name);
    const mark = state === "awaiting_answer" ? "(?) " : "";
    document.title = isNew ? "PythonServer" : `${mark}${name} · PythonServer`;
    this.#badge.hidden = state === null;
    this.#badge.dataset.state = state ?? "";
    setText(this.#badge, state === null ? "" : runStateWords(state));
  }
}

function beginning([chat]) {
  return chat.turns.values().next().value?.startedAt ?? Date.now();
}
