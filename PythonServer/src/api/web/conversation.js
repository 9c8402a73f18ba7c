// One conversation: its state, the stream that feeds it, what is being sent, and what is being stopped.

import { newActions } from "./actions.js";
import { getRun } from "./api.js";
import { Follower } from "./follower.js";
import { Outbox } from "./outbox.js";
import { Past } from "./past.js";
import { Standing } from "./standing.js";
import { apply, newChat } from "./state.js";

/** What comes often, and changes nothing that the list of runs shows. */
const INSIDE_A_TURN = new Set(
  ["text", "reasoning", "goal_status", "usage", "plan_updated", "tool_call", "tool_output", "tool_result"],
);

const GIVEN_BACK = new Set(["message_returned", "message_withdrawn"]);

/**
 * `on.changed(turnIds)` after every change (null: everything), `on.connection(word)`, `on.runs()` when the list of
 * runs is out of date, `on.address()` when the run has got its id, `on.back(message)` when one that waited has come
 * back, `on.trouble(error, what)`.
 */
export class Conversation extends Standing {
  outbox = new Outbox(this);
  #follower = null;
  #on;
  #isClosed = false;

  constructor(runId, on) {
    super();
    this.runId = runId;
    this.#on = on;
    this.past = new Past({
      changed: () => this.#changed(null),
      refused: (error) => this.#on.trouble(error, "The earlier messages cannot be shown"),
    });
    this.#resetActions();
    this.outbox.restore();
    if (runId !== null) this.#follow();
  }

  /** The page shows another conversation. Messages that are on their way still arrive. */
  close() {
    this.#isClosed = true;
    this.#follower?.close();
    this.past.close();
  }

  /** `mode` is what it means to the turn at work; it counts if there is one that may be talked to. */
  send(text, mode) {
    this.outbox.add(text, this.isTalkedTo ? mode : null);
    this.#changed(null);
  }

  /** Send a message again that was refused. */
  retry(item, mode) {
    this.outbox.retry(item, this.isTalkedTo ? mode : null);
  }

  /** STOP: the turn that is shown; or, if its id is not known yet, the one that the message on its way will start. */
  stop() {
    const { turn } = this;
    if (turn !== null) return this.#stopTurn(turn.id);
    if (this.goingBack.isStarting) return this.#stopWhatStarts(this.goingBack.pending);
    const item = this.sending;
    if (item === null) return undefined;
    item.isStopWanted = true;
    if (item.answer !== null) this.#stopTurnOf(item.answer);
    return this.#changed(null);
  }

  /** End the run for good. */
  end() {
    if (this.runId !== null && this.chat.phase !== "over") this.stopper.endRun(this.runId);
  }

  /** `way` is `resume`, `regenerate` or `rollback` of the newest turn, or `compact`. */
  goBack(way) {
    if (this.back.ways.includes(way)) this.goingBack.start(this.runId, this.chat, this.back.turnId, way);
  }

  /** Take back the newest compaction. */
  undoCompaction() {
    if (this.back.ways.length > 0) this.goingBack.start(this.runId, this.chat, this.back.turnId, "undo");
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
    this.outbox.startOver(answer.run_id);
    this.runId = answer.run_id;
    this.sessionId = answer.session_id;
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
      if (GIVEN_BACK.has(event.type)) this.#giveBack(event);
      isListOld ||= !INSIDE_A_TURN.has(event.type);
    }
    this.sessionId ??= this.chat.sessionId;
    this.outbox.settle();
    this.goingBack.settle(this.chat);
    this.#changed(touched);
    if (isListOld) this.#on.runs();
  }

  /** A message that was sent from here, or asked back from here, goes to the user of this page. */
  #giveBack({ message_id: id }) {
    if (this.outbox.accepted.has(id) || this.inbox.isTaken(id)) this.#on.back(this.chat.messages.get(id));
  }

  /** A run that took up an older session: turns are counted through it, so there is more before this run. */
  #lookBehind(event) {
    if (this.chat.turns.size === 1 && event.number > 1) this.past.load(this.chat.sessionId, this.runId);
  }

  // -- small helpers -----------------------------------------------------------------------------

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
    Object.assign(this, newActions({
      changed: () => this.#changed(null),
      answered: () => this.#follower?.poke(),
      started: (pending) => {
        if (pending.isStopWanted) this.#stopTurn(pending.answer.turn_id);
        this.#follower?.poke();
      },
      trouble: (error, what) => this.#on.trouble(error, what),
    }));
  }

  #changed(turnIds) {
    if (!this.#isClosed) this.#on.changed(turnIds);
  }
}
