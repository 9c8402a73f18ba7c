// One conversation: its state, the stream that feeds it, what is being sent, and what is being stopped.

import { getRun } from "./api.js";
import { Follower } from "./follower.js";
import { GoingBack, waysBack } from "./going_back.js";
import { Outbox, titleOf } from "./outbox.js";
import { Past } from "./past.js";
import { apply, lastTurn, newChat, openTurn } from "./state.js";
import { Stopper } from "./stopper.js";

const NOT_DONE = {
  resume: "The turn was not resumed",
  regenerate: "The message was not asked again",
  rollback: "The turn was not taken out",
};
/** What comes often, and changes nothing that the list of runs shows. */
const INSIDE_A_TURN = new Set(
  ["text", "reasoning", "goal_status", "usage", "plan_updated", "tool_call", "tool_output", "tool_result"],
);

/**
 * `on.changed(turnIds)` after every change (null: everything), `on.connection(word)`, `on.runs()` when the list of
 * runs is out of date, `on.address()` when the run has got its id, `on.trouble(error)`.
 */
export class Conversation {
  runId;
  sessionId = null;
  chat = newChat();
  /** The session from before this run. */
  past;
  outbox = new Outbox(this);
  stopper;
  goingBack;
  #follower = null;
  #on;
  #isClosed = false;

  constructor(runId, on) {
    this.runId = runId;
    this.#on = on;
    this.past = new Past({
      changed: () => this.#changed(null),
      refused: (error) => this.#on.trouble(error, "The earlier messages cannot be shown"),
    });
    this.#resetActions();
    if (runId !== null) this.#follow();
  }

  /** The page shows another conversation. Messages that are on their way still arrive. */
  close() {
    this.#isClosed = true;
    this.#follower?.close();
    this.past.close();
  }

  get turn() {
    return openTurn(this.chat);
  }

  /** Whether a stop would find something: a turn, or a message that is about to become one. */
  get isBusy() {
    return this.turn !== null || (this.chat.phase !== "open" && (this.#sending() !== null || this.goingBack.isStarting));
  }

  get isStopping() {
    const { turn } = this;
    if (this.goingBack.pending?.isStopWanted) return true;
    if (this.outbox.items.some((item) => item.isStopWanted && item.error === null)) return true;
    return turn !== null && (turn.state === "stopping" || this.stopper.isWanted(turn.id));
  }

  /** The run's state in the API's words, for the whole page; null: there is no run, or nothing is known of it yet. */
  get state() {
    if (this.isBusy) return this.isStopping ? "stopping" : this.turn?.state ?? "queued";
    return this.chat.end?.state ?? (this.chat.seq > 0 ? "awaiting_input" : null);
  }

  /** The name that the server made; else what the session's first run is called, or is going to be; else null. */
  get title() {
    const chats = [...this.past.chats, this.chat];
    const made = chats.findLast((chat) => chat.title !== null);
    if (made !== undefined) return made.title;
    const given = this.past.title === undefined ? chats[0].metadata.title : this.past.title;
    if (typeof given === "string" && given !== "") return given;
    const item = this.past.title === undefined && chats[0].seq === 0 ? this.#sending() : null;
    return item === null ? null : titleOf(item.text);
  }

  /** What may be done with the newest turn, `{turnId, ways, pending}`; no ways while something is on its way. */
  get back() {
    const ways = this.#sending() === null ? waysBack(this.chat) : [];
    return { turnId: lastTurn(this.chat)?.id ?? null, ways, pending: this.goingBack.pending?.way ?? null };
  }

  send(text) {
    this.outbox.add(text);
    this.#changed(null);
  }

  /** STOP: the turn that is shown; or, if its id is not known yet, the one that the message on its way will start. */
  stop() {
    const { turn } = this;
    if (turn !== null) return this.#stopTurn(turn.id);
    if (this.goingBack.isStarting) return this.#stopWhatStarts(this.goingBack.pending);
    const item = this.#sending();
    if (item === null) return undefined;
    item.isStopWanted = true;
    if (item.answer !== null) this.#stopTurnOf(item.answer);
    return this.#changed(null);
  }

  /** End the run for good. */
  end() {
    if (this.runId !== null && this.chat.phase !== "over") this.stopper.endRun(this.runId);
  }

  /** `way` is `resume`, `regenerate` or `rollback`: of the newest turn. */
  goBack(way) {
    if (this.back.ways.includes(way)) this.goingBack.start(this.runId, this.back.turnId, way);
  }

  // -- told by the outbox --------------------------------------------------------------------

  onAccepted(item, answer) {
    if (item.isStopWanted) this.#stopTurnOf(answer);
    this.#changed(null);
    this.#follower?.poke();
    this.#on.runs();
  }

  onNewRun(answer) {
    if (this.runId !== null) this.past.keep(this.runId, this.chat);
    this.runId = answer.run_id;
    this.sessionId = answer.session_id;
    this.outbox.startOver();
    this.#resetActions();
    this.#restart();
    this.#on.address();
  }

  onChanged() {
    this.#changed(null);
  }

  onRefused(error) {
    this.#changed(null);
    this.#on.trouble(error, "The message was not sent");
  }

  // -- the stream ------------------------------------------------------------------------------

  #follow() {
    if (this.#isClosed) return;
    this.#follower = new Follower(this.runId, this.chat.seq, {
      events: (events) => this.#takeEvents(events),
      resync: () => this.#restart(),
      connection: (word) => this.#on.connection(word),
      refused: (error) => this.#on.trouble(error, "This chat cannot be shown"),
    });
  }

  /** From the beginning: the log holds everything. */
  #restart() {
    this.#follower?.close();
    this.chat = newChat();
    this.#changed(null);
    this.#follow();
  }

  #takeEvents(events) {
    const touched = new Set();
    let isListOld = false;
    for (const event of events) {
      for (const turnId of apply(this.chat, event)) touched.add(turnId);
      if (event.type === "turn_started") this.#lookBehind(event);
      isListOld ||= !INSIDE_A_TURN.has(event.type);
    }
    this.sessionId ??= this.chat.sessionId;
    this.outbox.settle();
    this.goingBack.settle(this.chat);
    this.#changed(touched);
    if (isListOld) this.#on.runs();
  }

  /** A run that took up an older session: turns are counted through it, so there is more before this run. */
  #lookBehind(event) {
    if (this.chat.turns.size === 1 && event.number > 1) this.past.load(this.chat.sessionId, this.runId);
  }

  // -- small helpers -----------------------------------------------------------------------------

  #sending() {
    return this.outbox.unconfirmed().find((item) => item.error === null) ?? null;
  }

  /** The message whose turn was to be stopped has arrived; it may have found another turn open, and wait behind it. */
  async #stopTurnOf(answer) {
    try {
      this.#stopTurn(answer.turn_id ?? this.turn?.id ?? (await getRun(this.runId)).turn_id);
    } catch (error) {
      this.#on.trouble(error, "The stop was not sent");
    }
  }

  /** Once the server has said which turn it is. */
  #stopWhatStarts(pending) {
    pending.isStopWanted = true;
    if (pending.answer !== null) this.#stopTurn(pending.answer.turn_id);
    this.#changed(null);
  }

  #stopTurn(turnId) {
    // A batch run cannot be parked: stopping its turn is ending it.
    if (this.chat.isInteractive) this.stopper.stopTurn(this.runId, turnId);
    else this.stopper.endRun(this.runId);
  }

  #resetActions() {
    this.stopper = new Stopper({
      changed: () => this.#changed(null),
      answered: () => this.#follower?.poke(),
      refused: (error) => this.#on.trouble(error, "The stop was refused"),
      unreachable: (error) => this.#on.trouble(error, "The stop has not reached the server yet, trying again"),
    });
    this.goingBack = new GoingBack({
      changed: () => this.#changed(null),
      answered: (pending) => {
        if (pending.isStopWanted) this.#stopTurn(pending.answer.turn_id);
        this.#follower?.poke();
      },
      refused: (error, way) => {
        this.#changed(null);
        this.#on.trouble(error, NOT_DONE[way]);
      },
    });
  }

  #changed(turnIds) {
    if (!this.#isClosed) this.#on.changed(turnIds);
  }
}
