// What the events of a run add up to. Replay and live go through the same function, so a reload shows what was seen.
// No clock, no network, no DOM: the same events always give the same state.

import { deliverMessage, holdMessages, moveMessage, queueMessage, releaseHeld, settleMessage } from "./inbox_state.js";
import { handBack, isOfPart, isOpen, newTurn, tell } from "./turn_state.js";

export function newChat() {
  return {
    seq: 0,
    sessionId: null,
    isInteractive: true,
    metadata: {},
    /** Messages of a conversation from elsewhere that the run was started with. */
    handedIn: [],
    /** The name that the server has made for the session, if one of its turns here did. */
    title: null,
    /** `open`, `parked` or `over`. */
    phase: "parked",
    /** id -> turn, oldest first. */
    turns: new Map(),
    /** message id -> `{id, text, mode, seq, fate}`, in the order in which they wait; the fate is `queued`, `held`,
     *  `returned` or `withdrawn`. */
    messages: new Map(),
    /** id -> `{text, seq}` of every message that the events have told of. */
    heard: new Map(),
    /** The ids of the compactions that were taken back here. */
    undone: new Set(),
    /** How the run ended: `{state, cause, reason, error}`. */
    end: null,
  };
}

export const lastTurn = (chat) => [...chat.turns.values()].at(-1) ?? null;

/** The newest turn that a message has started. */
export const lastMessageTurn = (chat) => [...chat.turns.values()].findLast((turn) => !turn.isCompaction) ?? null;

/** The turn that a stop would reach, or null. */
export function openTurn(chat) {
  const turn = lastTurn(chat);
  return turn !== null && isOpen(turn) ? turn : null;
}

/** Take in one event. Returns the ids of the turns that it changed. An event is taken once. */
export function apply(chat, event) {
  if (event.seq <= chat.seq) return [];
  chat.seq = event.seq;
  const others = ON_CHAT[event.type]?.(chat, event) ?? [];
  const turn = chat.turns.get(event.turn_id);
  if (turn === undefined) return others;
  tell(turn, event);
  return [turn.id, ...others];
}

// These return the ids of other turns than the event's own that they changed, if any.
const ON_CHAT = {
  run_started(chat, event) {
    chat.sessionId = event.session_id;
    chat.isInteractive = event.interactive;
    chat.metadata = event.metadata ?? {};
    chat.handedIn = event.messages ?? [];
  },
  turn_started(chat, event) {
    const previous = lastMessageTurn(chat);
    chat.phase = "open";
    chat.turns.set(event.turn_id, newTurn(event, chat.turns.size === 0 ? chat.handedIn : []));
    hear(chat, event, event.input);
    if (previous === null || event.message_id !== undefined || event.kind === "compaction") return [];
    // No message has started it: the previous turn is asked again, or resumed.
    releaseHeld(chat);
    return previous.leftOut === null ? [] : leaveOut(chat, previous.id, "asked_again");
  },
  turn_resumed(chat, event) {
    const turn = chat.turns.get(event.turn_id);
    if (turn !== undefined) turn.resumed = chat.turns.get(event.resumes) ?? null;
    return leaveOut(chat, event.resumes, "resumed");
  },
  turn_rolled_back: (chat, event) => leaveOut(chat, event.rolled_back, "rolled_back"),
  turn_completed(chat, event) {
    chat.title = event.title ?? chat.title;
  },
  awaiting_input(chat) {
    chat.phase = "parked";
  },
  stop_requested(chat, event) {
    if (isOfPart(event)) return;
    holdMessages(chat, event.inbox?.kept);
  },
  message_queued(chat, event) {
    queueMessage(chat, event, openTurn(chat)?.state === "stopping");
    hear(chat, event, event.text);
  },
  message_delivered: (chat, event) => deliverMessage(chat, event),
  message_moved: (chat, event) => moveMessage(chat, event),
  compaction(chat, event) {
    if (event.undone !== undefined) chat.undone.add(event.undone);
  },
  message_returned(chat, event) {
    settleMessage(chat, event, "returned");
    return [...chat.turns.values()].filter((turn) => handBack(turn, event.message_id)).map((turn) => turn.id);
  },
  message_withdrawn: (chat, event) => settleMessage(chat, event, "withdrawn"),
  run_completed: (chat, event) => endRun(chat, event, "completed"),
  run_cancelled: (chat, event) => endRun(chat, event, "cancelled"),
  run_failed: (chat, event) => endRun(chat, event, "failed"),
};

/** A turn is no part of the conversation any more. */
function leaveOut(chat, turnId, why) {
  const turn = chat.turns.get(turnId);
  if (turn === undefined) return [];
  turn.leftOut = why;
  return [turnId];
}

function hear(chat, { message_id: id, seq }, text) {
  if (id !== undefined) chat.heard.set(id, { seq, text });
}

function endRun(chat, event, state) {
  chat.phase = "over";
  chat.end = { state, cause: event.cause ?? null, reason: event.reason ?? null, error: event.error ?? null };
}
