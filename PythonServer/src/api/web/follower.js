// Follows the events of one run: resumes after a break, and lets go of the connection while the tab is hidden.

import { ApiError, openEvents } from "./api.js";
import { takeSlot, takeTurn } from "./slots.js";
import { readFrames } from "./sse.js";

const HIDDEN_MS = 3000; // a hidden tab keeps its stream for so long
const SILENCE_MS = 45000; // the server gives a sign of life every 15 s
const VISIT_QUIET_MS = 300; // a visit ends when nothing came for so long,
const VISIT_MS = 1500; // and after this at the latest
const BETWEEN_VISITS_MS = 1500;
const BACKOFF_MS = [300, 700, 1500, 3000, 6000, 10000];
const RUN_ENDS = new Set(["run_completed", "run_cancelled", "run_failed"]);

/**
 * `on.events(list)` gets the events in order, each once; `on.resync()` says that some were lost;
 * `on.connection(word)` gets `connected`, `lost` or `shared`; `on.refused(error)` ends it.
 */
export class Follower {
  #runId;
  #after;
  #on;
  #ended = new AbortController();
  #stream = null;
  #failures = 0;
  #hiddenTimer = 0;
  #wake = () => {};

  constructor(runId, after, on) {
    this.#runId = runId;
    this.#after = after;
    this.#on = on;
    document.addEventListener("visibilitychange", () => this.#lookAtVisibility(), { signal: this.#ended.signal });
    window.addEventListener("online", () => this.poke(), { signal: this.#ended.signal });
    this.#run();
  }

  close() {
    this.#ended.abort();
    this.#stream?.abort();
    clearTimeout(this.#hiddenTimer);
    this.#wake();
  }

  /** Something has happened at the server: if the stream is not open, look now. */
  poke() {
    this.#wake();
  }

  get #isClosed() {
    return this.#ended.signal.aborted;
  }

  #lookAtVisibility() {
    clearTimeout(this.#hiddenTimer);
    if (document.hidden) this.#hiddenTimer = setTimeout(() => this.#stream?.abort(), HIDDEN_MS);
    else this.poke();
  }

  async #run() {
    while (!this.#isClosed) {
      if (document.hidden) {
        await this.#pause(Infinity);
        continue;
      }
      const release = await takeSlot();
      try {
        if (release) await this.#read(null);
        else await takeTurn(this.#ended.signal, () => this.#read(VISIT_QUIET_MS));
      } catch (error) {
        if (this.#isClosed) return;
        await this.#afterError(error);
        continue;
      } finally {
        release?.();
      }
      if (!release) {
        this.#on.connection("shared");
        await this.#pause(BETWEEN_VISITS_MS);
      }
    }
  }

  /** Read the stream until it ends, or, on a visit, until nothing more is there. */
  async #read(quietMs) {
    if (this.#isClosed) return;
    const stream = (this.#stream = new AbortController());
    const watch = new Watch(stream, quietMs);
    try {
      const response = await openEvents(this.#runId, this.#after, stream.signal);
      for await (const frames of readFrames(response.body)) {
        watch.sign();
        this.#failures = 0;
        if (quietMs === null) this.#on.connection("connected");
        if (this.#deliver(frames)) return;
      }
      if (!stream.signal.aborted) throw new ApiError(0, "closed", "The server closed the stream");
    } catch (error) {
      if (stream.signal.aborted && !watch.isDead) return; // hidden, closed, or the visit is over
      throw error;
    } finally {
      watch.end();
      stream.abort();
    }
  }

  /** True if nothing more is to be read from this stream. */
  #deliver(frames) {
    const events = [];
    for (const frame of frames) {
      if (this.#isClosed) return true;
      if (frame.type === "resync") {
        this.close();
        this.#on.resync();
        return true;
      }
      events.push(JSON.parse(frame.data));
      this.#after = frame.id;
    }
    if (events.length === 0) return false;
    this.#on.events(events);
    if (!RUN_ENDS.has(events.at(-1).type)) return false;
    this.close();
    return true;
  }

  async #afterError(error) {
    if (error instanceof ApiError && !error.isPassing && error.status < 500) {
      this.close();
      this.#on.refused(error);
      return;
    }
    if (this.#failures > 0) this.#on.connection("lost"); // the first try again is made in silence
    const wait = BACKOFF_MS[Math.min(this.#failures, BACKOFF_MS.length - 1)];
    this.#failures += 1;
    await this.#pause(error.retryAfterMs ?? wait * (0.75 + Math.random() / 2));
  }

  /** Wait; `poke`, `close` and the tab's becoming visible end it early. */
  #pause(ms) {
    return new Promise((wake) => {
      const timer = ms === Infinity ? 0 : setTimeout(wake, ms);
      this.#wake = () => {
        clearTimeout(timer);
        wake();
      };
      if (this.#isClosed || (ms === Infinity && !document.hidden)) this.#wake();
    });
  }
}

/** Ends a stream that has gone silent: as dead, or, with `quietMs`, because the visit has seen all there is. */
class Watch {
  isDead = false;
  #stream;
  #quietMs;
  #timer = 0;
  #limit = 0;

  constructor(stream, quietMs) {
    this.#stream = stream;
    this.#quietMs = quietMs;
    if (quietMs !== null) this.#limit = setTimeout(() => stream.abort(), VISIT_MS);
    this.#arm(SILENCE_MS, true);
  }

  sign() {
    if (this.#quietMs === null) this.#arm(SILENCE_MS, true);
    else this.#arm(this.#quietMs, false);
  }

  end() {
    clearTimeout(this.#timer);
    clearTimeout(this.#limit);
  }

  #arm(ms, isDead) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.isDead = isDead;
      this.#stream.abort();
    }, ms);
  }
}
