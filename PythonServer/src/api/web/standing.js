// How a conversation stands, by what its events say and what the page has on its way to the server.

import { waysBack } from "./going_back.js";
import { compactionInForce, mayShorten } from "./history.js";
import { titleOf } from "./outbox.js";
import { openQuestions } from "./question_state.js";
import { lastMessageTurn, newChat, openTurn } from "./state.js";

export class Standing {
  runId = null;
  sessionId = null;
  chat = newChat();
  /** The session from before this run. */
  past;
  outbox;
  stopper;
  goingBack;
  inbox;
  answers;

  get turn() {
    return openTurn(this.chat);
  }

  /** Whether a stop would find something: a turn, or a message that is about to become one. */
  get isBusy() {
    return this.turn !== null || (this.chat.phase !== "open" && (this.sending !== null || this.goingBack.isStarting));
  }

  get isStopping() {
    const { turn } = this;
    if (this.goingBack.pending?.isStopWanted) return true;
    if (this.outbox.items.some((item) => item.isStopWanted && item.error === null)) return true;
    return turn !== null && (turn.state === "stopping" || this.stopper.isWanted(turn.id));
  }

  /** The run's state in the API's words, for the whole page; null: there is no run, or nothing is known of it yet. */
  get state() {
    if (this.isBusy && this.isStopping) return "stopping";
    if (this.questions.length > 0) return "awaiting_answer";
    if (this.isBusy) return this.turn?.state ?? "queued";
    return this.chat.end?.state ?? (this.chat.seq > 0 ? "awaiting_input" : null);
  }

  /** The tool calls that wait for the user's answer. */
  get questions() {
    return openQuestions(this.turn);
  }

  /** Whether a message may say what it means to the turn at work. */
  get isTalkedTo() {
    return this.turn !== null && !this.isStopping && this.isTalkative;
  }

  /** Whether what is at work, or about to be, takes messages while nobody stops it. */
  get isTalkative() {
    const isCompaction = this.turn?.isCompaction ?? this.goingBack.pending?.way === "compact";
    return this.isBusy && !isCompaction && this.chat.isInteractive;
  }

  /** The chats of the session, oldest run first. */
  get chats() {
    return [...this.past.chats, this.chat];
  }

  /** The id of the newest summary that stands for a part of the history, or null. */
  get compactionId() {
    return compactionInForce(this.chats);
  }

  /** The name that the server made; else what the session's first run is called, or is going to be; else null. */
  get title() {
    const { chats } = this;
    const made = chats.findLast((chat) => chat.title !== null);
    if (made !== undefined) return made.title;
    const given = this.past.title === undefined ? chats[0].metadata.title : this.past.title;
    if (typeof given === "string" && given !== "") return given;
    const item = this.past.title === undefined && chats[0].seq === 0 ? this.sending : null;
    return item === null ? null : titleOf(item.text);
  }

  /** What may be done with the newest turn, `{turnId, ways, pending}`; no ways while something is on its way. */
  get back() {
    const { chat, chats } = this;
    const ways = this.sending === null ? waysBack(chat) : [];
    if (ways.length > 0 && mayShorten(chats)) ways.push("compact");
    return { turnId: lastMessageTurn(chat)?.id ?? null, ways, pending: this.goingBack.pending?.way ?? null };
  }

  /** The first message that is on its way, or null. */
  get sending() {
    return this.outbox.unconfirmed().find((item) => item.error === null) ?? null;
  }
}
