// The list of chats: one entry a session, with the name of its first run and the state of its newest.

import { listRuns } from "../api.js";
import { runStateWords } from "../words.js";
import { h, icon } from "./dom.js";

const ICON = {
  queued: "working", running: "working", stopping: "working", awaiting_answer: "paused", awaiting_input: "done",
  completed: "done", cancelled: "stopped", failed: "failed",
};
const TOGETHER_MS = 250; // events come in bursts

export class Sidebar {
  #list;
  #more;
  #runs = new Map();
  #cursor = null;
  #hasLoaded = false;
  #timer = 0;
  #shown = "";
  #onTrouble;
  #open = { runId: null, sessionId: null, state: null, title: null };

  constructor(list, more, onTrouble) {
    this.#list = list;
    this.#more = more;
    this.#onTrouble = onTrouble;
    more.addEventListener("click", () => this.#load(this.#cursor));
  }

  /** What the page knows of the open run: it is newer than any list. */
  update({ runId, sessionId, state, title }) {
    const open = { runId, sessionId, state, title };
    if (JSON.stringify(open) === JSON.stringify(this.#open)) return;
    this.#open = open;
    this.#show();
  }

  /** Soon, and once for many calls. */
  refresh() {
    if (this.#timer !== 0) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#load(null);
    }, TOGETHER_MS);
  }

  async #load(cursor) {
    try {
      const page = await listRuns(cursor);
      for (const run of page.runs) this.#runs.set(run.run_id, run);
      if (cursor !== null || !this.#hasLoaded) this.#cursor = page.next_cursor;
      this.#hasLoaded = true;
      this.#more.hidden = this.#cursor === null;
      this.#show();
    } catch (error) {
      this.#onTrouble(error);
    }
  }

  /** Draw what is known, if it differs from what is shown. */
  #show() {
    const entries = this.#entries();
    const current = this.#runs.get(this.#open.runId)?.session_id ?? this.#open.sessionId;
    const shown = JSON.stringify([current, entries.map(({ run, title }) => [run.run_id, run.state, title])]);
    if (shown === this.#shown) return; // a focused entry keeps its focus
    this.#shown = shown;
    const hadFocus = this.#list.contains(document.activeElement) ? document.activeElement.dataset.sessionId : null;
    this.#list.replaceChildren(...entries.map(({ run, title }) => entry(run, title, run.session_id === current)));
    if (entries.length === 0) this.#list.append(h("li", { class: "muted none" }, "No chats yet"));
    if (hadFocus) this.#list.querySelector(`[data-session-id="${CSS.escape(hadFocus)}"]`)?.focus();
  }

  /** `{run, title}` of each session, the one with the newest run first. */
  #entries() {
    const entries = new Map();
    for (const run of this.#withOpenRun().sort((a, b) => (a.run_id < b.run_id ? 1 : -1))) {
      const newest = entries.get(run.session_id)?.run ?? run;
      const isOpen = run.session_id === this.#open.sessionId && this.#open.title !== null;
      entries.set(run.session_id, { run: newest, title: isOpen ? this.#open.title : chatTitle(run) });
    }
    return [...entries.values()];
  }

  #withOpenRun() {
    const { runId, sessionId, state } = this.#open;
    const known = this.#runs.get(runId);
    const isKnown = runId !== null && (known !== undefined || sessionId !== null);
    if (state === null || !isKnown) return [...this.#runs.values()];
    const fresh = { run_id: runId, session_id: sessionId, metadata: {}, created_at: Date.now() };
    return [...new Map(this.#runs).set(runId, { ...(known ?? fresh), state }).values()];
  }
}

/** What a chat is called; `run` is a run of the API. */
export function chatTitle(run) {
  const title = run.title ?? run.metadata?.title;
  return typeof title === "string" && title ? title : `Chat of ${when(run.created_at)}`;
}

function entry(run, title, isCurrent) {
  const name = ICON[run.state] ?? "waiting";
  return h("li", {},
    h("a", { href: `#run=${encodeURIComponent(run.run_id)}`, "aria-current": isCurrent ? "true" : null,
      "data-session-id": run.session_id },
    h("span", { class: "chat-title" }, title),
    h("span", { class: "chat-state", "data-state": run.state }, icon(name), h("span", {}, runStateWords(run.state)),
      h("span", { class: "muted" }, when(run.created_at)))));
}

function when(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return date.toLocaleString([], isToday
    ? { hour: "2-digit", minute: "2-digit" }
    : { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}
