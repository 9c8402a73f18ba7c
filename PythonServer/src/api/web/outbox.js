// Messages on their way to the server. Each has an id of its own, so that sending it again does not double it.

import { ApiError, createRun, sendInput } from "./api.js";
import { getUnsent, keepUnsent } from "./remembered.js";

const TRIES = 4;
const BETWEEN_MS = [400, 1200, 3000];

/** Not `crypto.randomUUID`, which is missing where the page comes over plain HTTP. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `web-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * The messages of one conversation that its events do not show yet, in order; one is sent at a time.
 *
 * `conversation` has `runId`, `sessionId`, `title`, `chat`, and is told by `onAccepted(item, answer)`,
 * `onNewRun(answer)`, `onChanged()` and `onRefused(error)`.
 */
export class Outbox {
  items = [];
  /** The ids of the messages that the server has accepted from here. */
  accepted = new Set();
  #conversation;
  #last = Promise.resolve();

  constructor(conversation) {
    this.#conversation = conversation;
  }

  /** What the page was left with before the server had accepted it. Sending it again does not double it. */
  restore() {
    const error = new ApiError(0, "unreachable", "the page was left before the server had answered");
    for (const item of getUnsent(this.#conversation.runId)) {
      this.items.push({ ...item, means: {}, answer: null, error, isStopWanted: false, isDiscarded: false });
    }
  }

  /** `mode` says what it means to the turn at work; null if there is none. */
  add(text, mode) {
    // What the event log says of it after this point is this message, should the answer come later than the event.
    const { chat, turn } = this.#conversation;
    const means = mode === null ? {} : { mode, if_turn: turn.id };
    const item = {
      id: newId(), text, means, afterSeq: chat.seq, answer: null, error: null, isStopWanted: false, isDiscarded: false,
    };
    this.items.push(item);
    this.#keep();
    this.#queue(item);
    return item;
  }

  retry(item, mode) {
    item.error = null;
    item.means = mode === null ? {} : { mode, if_turn: this.#conversation.turn.id };
    this.#conversation.onChanged();
    this.#queue(item);
  }

  /** A message that was refused is not to be sent; until it is forgotten, that can be taken back. */
  discard(item, isDiscarded = true) {
    item.isDiscarded = isDiscarded;
    this.#keep();
    this.#conversation.onChanged();
  }

  forget(item) {
    this.items = this.items.filter((other) => other !== item);
    this.#keep();
    this.#conversation.onChanged();
  }

  /** A new run has begun: its log counts from 1 again, and does not speak of what the one before has accepted. */
  startOver(runId) {
    this.items = this.items.filter((item) => item.answer === null);
    for (const item of this.items) item.afterSeq = 0;
    keepUnsent(this.#conversation.runId, []);
    this.#keep(runId);
  }

  /** The messages that the events do not show. */
  unconfirmed() {
    return this.items.filter((item) => !this.#isShown(item));
  }

  /** Let go of what the server has accepted and the events show. */
  settle() {
    const isOnItsWay = (item) => item.answer === null && item.error === null;
    this.items = this.items.filter((item) => isOnItsWay(item) || !this.#isShown(item));
    this.#keep();
  }

  #keep(runId = this.#conversation.runId) {
    const unsent = this.items.filter(({ answer, isDiscarded }) => answer === null && !isDiscarded);
    keepUnsent(runId, unsent.map(({ id, text, afterSeq }) => ({ id, text, afterSeq })));
  }

  #isShown({ answer, text, afterSeq }) {
    const { chat } = this.#conversation;
    if (answer === null) {
      const begun = [...chat.turns.values()].map(({ seq, input }) => ({ seq, text: input }));
      return [...begun, ...chat.heard.values()].some((one) => one.seq > afterSeq && one.text === text);
    }
    const { turn_id: turnId, message_id: messageId } = answer;
    return chat.phase === "over" || (messageId === undefined ? chat.turns.has(turnId) : chat.heard.has(messageId));
  }

  #queue(item) {
    this.#last = this.#last.then(() => this.#deliver(item));
  }

  async #deliver(item) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        const answer = await this.#post(item);
        item.answer = answer;
        if (answer.message_id !== undefined) this.accepted.add(answer.message_id);
        this.settle();
        this.#conversation.onAccepted(item, answer);
        return;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (!error.isPassing || attempt === TRIES) {
          item.error = error;
          this.#conversation.onRefused(error);
          return;
        }
        await new Promise((wake) => setTimeout(wake, error.retryAfterMs ?? BETWEEN_MS[attempt - 1]));
      }
    }
  }

  async #post(item) {
    const { runId, chat } = this.#conversation;
    if (runId !== null && chat.phase !== "over") {
      try {
        return await this.#sendInput(runId, item);
      } catch (error) {
        if (error.code !== "run_is_over") throw error; // it has ended behind our back: go on in the same session
      }
    }
    return this.#startRun(item);
  }

  /** What was meant for a turn that is over by now does nothing to the one behind it. */
  async #sendInput(runId, item) {
    try {
      return await sendInput(runId, item.text, item.id, item.means);
    } catch (error) {
      if (error.code !== "turn_is_over") throw error;
      return sendInput(runId, item.text, item.id, { mode: "queue" });
    }
  }

  async #startRun(item) {
    const { sessionId } = this.#conversation;
    // A later run of a session goes by the name of the first.
    const title = sessionId === null ? titleOf(item.text) : this.#conversation.title;
    const body = { input: item.text, metadata: title === null ? {} : { title } };
    if (sessionId !== null) body.session_id = sessionId;
    const answer = await createRun(body, item.id);
    this.#conversation.onNewRun(answer);
    return { ...answer, disposition: "started" };
  }
}

/** What a chat is called that begins with this message. */
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 80 ? `${line.slice(0, 79)}…` : line;
}
