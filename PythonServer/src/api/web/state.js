// What the events of a run add up to. Replay and live go through the same function, so a reload shows what was seen.
// No clock, no network, no DOM: the same events always give the same state.

import { isOfPart, isOpen, newTurn, tell } from "./turn_state.js";

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
    /** message id -> `{id, text, seq, fate}`; the fate is `queued`, `held`, `returned` or `withdrawn`. */
    messages: new Map(),
    /** How the run ended: `{state, cause, reason, error}`. */
    end: null,
  };
}

export const lastTurn = (chat) => [...chat.turns.values()].at(-1) ?? null;

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
    const previous = lastTurn(chat);
    chat.phase = "open";
    chat.turns.set(event.turn_id, newTurn(event, previous === null ? chat.handedIn : []));
    if (previous === null || event.message_id !== undefined) return [];
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
    for (const message of chat.messages.values()) if (message.fate === "queued") message.fate = "held";
  },
  message_queued(chat, event) {
    chat.messages.set(event.message_id, { id: event.message_id, text: event.text, seq: event.seq, fate: "queued" });
  },
  message_delivered(chat, event) {
    const wasHeld = chat.messages.get(event.message_id)?.fate === "held";
    chat.messages.delete(event.message_id);
    if (wasHeld) releaseHeld(chat);
  },
  message_returned: (chat, event) => settleMessage(chat, event, "returned"),
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

function releaseHeld(chat) {
  for (const message of chat.messages.values()) if (message.fate === "held") message.fate = "queued";
}

function settleMessage(chat, event, fate) {
  const known = chat.messages.get(event.message_id);
  chat.messages.set(event.message_id, { id: event.message_id, seq: event.seq, ...known, text: event.text, fate });
}

function endRun(chat, event, state) {
  chat.phase = "over";
  chat.end = { state, cause: event.cause ?? null, reason: event.reason ?? null, error: event.error ?? null };
}
