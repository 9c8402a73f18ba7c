// The list of chats: one entry a session, the newest run of it.

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
  #currentRun;

  /** `currentRun()` is the id of the run that is open. */
  constructor(list, more, currentRun, onTrouble) {
    this.#list = list;
    this.#more = more;
    this.#currentRun = currentRun;
    this.#onTrouble = onTrouble;
    more.addEventListener("click", () => this.#load(this.#cursor));
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
      this.show();
    } catch (error) {
      this.#onTrouble(error);
    }
  }

  /** Draw what is known, if it differs from what is shown. */
  show() {
    const newestOf = new Map();
    const runs = [...this.#runs.values()].sort((a, b) => (a.run_id < b.run_id ? 1 : -1));
    for (const run of runs) if (!newestOf.has(run.session_id)) newestOf.set(run.session_id, run);
    const entries = [...newestOf.values()];
    const current = this.#runs.get(this.#currentRun())?.session_id;
    const shown = JSON.stringify([current, entries.map((run) => [run.run_id, run.state])]);
    if (shown === this.#shown) return; // a focused entry keeps its focus
    this.#shown = shown;
    const hadFocus = this.#list.contains(document.activeElement) ? document.activeElement.dataset.sessionId : null;
    this.#list.replaceChildren(...entries.map((run) => entry(run, run.session_id === current)));
    if (entries.length === 0) this.#list.append(h("li", { class: "muted none" }, "No chats yet"));
    if (hadFocus) this.#list.querySelector(`[data-session-id="${CSS.escape(hadFocus)}"]`)?.focus();
  }
}

/** What a chat is called; `run` is a run of the API. */
export function chatTitle(run) {
  const title = run.metadata?.title;
  return typeof title === "string" && title ? title : `Chat of ${when(run.created_at)}`;
}

function entry(run, isCurrent) {
  const name = ICON[run.state] ?? "waiting";
  return h("li", {},
    h("a", { href: `#run=${encodeURIComponent(run.run_id)}`, "aria-current": isCurrent ? "true" : null,
      "data-session-id": run.session_id },
    h("span", { class: "chat-title" }, chatTitle(run)),
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
