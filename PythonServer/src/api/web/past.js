// The runs of a session from before the one that is shown. Each is over: its log is complete, and is read once.

import { ApiError, listRunsOf, openEvents } from "./api.js";
import { readFrames } from "./sse.js";
import { apply, newChat } from "./state.js";

const BETWEEN_MS = [300, 1000, 3000, 8000];

export class Past {
  /** What the session's first run is called: undefined until it is known, null if it has no title. */
  title = undefined;
  #chats = new Map(); // run id -> chat, oldest first
  #on;
  #ended = new AbortController();
  #last = Promise.resolve();

  /** `on.changed()`, `on.refused(error)`. */
  constructor(on) {
    this.#on = on;
  }

  close() {
    this.#ended.abort();
  }

  /** What each run's events add up to, oldest run first. */
  get chats() {
    return [...this.#chats.values()];
  }

  /** A run that was followed to its end need not be read again. One that was not is shown until it has been read. */
  keep(runId, chat) {
    this.#chats.set(runId, chat);
    this.#chats = new Map([...this.#chats].sort(([one], [other]) => (one < other ? -1 : 1)));
  }

  /** Read the runs of the session that began before `runId`, the newest first; one call after the other. */
  load(sessionId, runId) {
    this.#last = this.#last.then(() => this.#load(sessionId, runId));
  }

  async #load(sessionId, runId) {
    try {
      const runs = await this.#persist(() => this.#list(sessionId, runId));
      if (runs.length > 0) this.title = runs.at(-1).title ?? runs.at(-1).metadata.title ?? null;
      this.#on.changed();
      for (const { run_id: id } of runs) {
        if (this.#chats.get(id)?.phase === "over") continue;
        this.keep(id, await this.#persist(() => this.#replay(id)));
        this.#on.changed();
      }
    } catch (error) {
      if (!this.#ended.signal.aborted) this.#on.refused(error);
    }
  }

  async #list(sessionId, runId) {
    const runs = [];
    let cursor = null;
    do {
      const page = await listRunsOf(sessionId, cursor, this.#ended.signal);
      runs.push(...page.runs);
      cursor = page.next_cursor;
    } while (cursor !== null);
    return runs.filter((run) => run.run_id < runId && run.ended_at !== null); // ids sort by time
  }

  async #replay(runId) {
    const chat = newChat();
    const response = await openEvents(runId, 0, this.#ended.signal);
    for await (const frames of readFrames(response.body)) {
      for (const frame of frames) if (frame.id !== null) apply(chat, JSON.parse(frame.data));
    }
    if (chat.phase !== "over") throw new ApiError(0, "closed", "The server closed the stream");
    return chat;
  }

  /** Nothing is shown twice or in part, so whatever broke off begins anew. */
  async #persist(read) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await read();
      } catch (error) {
        const isFinal = error instanceof ApiError && !error.isPassing;
        if (this.#ended.signal.aborted || isFinal || attempt === BETWEEN_MS.length) throw error;
        await new Promise((wake) => setTimeout(wake, BETWEEN_MS[attempt]));
      }
    }
  }
}
