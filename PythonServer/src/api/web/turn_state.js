// What the events of a turn add up to: its state, its goals, and how it ended.

import { allGoals, closeGoal, goalOf, setStatus, takePlan } from "./goal_state.js";
import { addCall, addOutput, addText, endCall, findCall } from "./parts.js";
import { askQuestion, settleQuestion } from "./question_state.js";
import { tellGoal } from "./rounds.js";

/** A turn only moves to the right: nothing brings "stopping" back to "running". */
const RANK = { queued: 0, running: 1, stopping: 2, completed: 3, cancelled: 3, failed: 3 };

export const isOpen = (turn) => RANK[turn.state] < RANK.completed;

/** Whether a `stop_requested` is about one goal or one tool call, and the turn goes on. */
export const isOfPart = (event) => event.goal_id !== undefined || event.call_id !== undefined;

/** Take in an event of the turn. What comes late for one that has ended changes nothing. */
export function tell(turn, event) {
  if (isOpen(turn)) ON_TURN[event.type]?.(turn, event);
}

const ON_TURN = {
  plan_updated(turn, event) {
    advance(turn, "running");
    turn.note = event.note ?? null;
    turn.retry = null;
    takePlan(turn, event.goals);
  },
  goal_status: (turn, event) => onGoal(turn, event, setStatus),
  text: (turn, event) => onGoal(turn, event, awake(addText)),
  reasoning: (turn, event) => onGoal(turn, event, think),
  tool_call: (turn, event) => onGoal(turn, event, awake(addCall)),
  tool_output: (turn, event) => onGoal(turn, event, awake(addOutput)),
  tool_result: (turn, event) => onGoal(turn, event, awake(endCall)),
  interruption_pending: askQuestion,
  interruption_resolved: settleQuestion,
  message_delivered(turn, event) {
    if (event.text === undefined) return; // it began the turn
    const message = { id: event.message_id, text: event.text, mode: event.mode };
    turn.told.push(message);
    for (const { goal_id: goalId, round } of event.goals) {
      const goal = goalOf(turn, goalId);
      if (goal !== undefined) tellGoal(goal, message, round);
    }
  },
  compaction(turn, event) {
    turn.compaction = {
      id: event.compaction_id, last: event.last, count: event.messages, summary: event.summary,
      before: event.before_tokens, after: event.after_tokens,
    };
  },
  retry(turn, event) {
    const waiting = goalOf(turn, event.goal_id) ?? turn;
    waiting.retry = {
      attempt: event.attempt, maxAttempts: event.max_attempts, isCapped: event.capped, reason: event.reason,
      waitMs: event.wait_ms, until: Date.parse(event.at) + event.wait_ms,
      fallback: event.fallback ? event.model : null,
    };
    waiting.fallback = waiting.retry.fallback ?? waiting.fallback;
  },
  usage(turn, event) {
    if (event.goal_id === undefined) turn.retry = null;
  },
  stop_requested(turn, event) {
    if (isOfPart(event)) return stopPart(turn, event);
    advance(turn, "stopping");
    turn.cause = event.cause;
    turn.reason = event.reason ?? null;
    turn.inbox = event.inbox ?? null;
  },
  turn_completed: (turn, event) => endTurn(turn, event, "completed"),
  turn_cancelled: (turn, event) => endTurn(turn, event, "cancelled"),
  turn_failed: (turn, event) => endTurn(turn, event, "failed"),
};

/** A message was handed back; whether the turn's stop had kept it, and so it says something else now. */
export function handBack(turn, messageId) {
  if (!turn.inbox?.kept?.includes(messageId)) return false;
  const kept = turn.inbox.kept.filter((id) => id !== messageId);
  turn.inbox = { ...turn.inbox, kept, returned: [...(turn.inbox.returned ?? []), messageId] };
  return true;
}

/** `handedIn` are the messages that came before it from elsewhere. */
export function newTurn(event, handedIn) {
  const isCompaction = event.kind === "compaction";
  return {
    handedIn,
    id: event.turn_id, number: event.number, input: event.input, seq: event.seq,
    /** No event says that a compaction is at work. */
    state: isCompaction ? "running" : "queued",
    messageId: event.message_id ?? null,
    /** It shortens the history, and says nothing. */
    isCompaction,
    startedAt: Date.parse(event.at), endedAt: null,
    /** goal id -> goal, parents before children; `top` holds the outermost ones. */
    goals: new Map(), top: [],
    /** goal id -> goal of a sub-agent; each is also in `goals` of the call that it works for. */
    delegated: new Map(),
    note: null, retry: null, fallback: null, cause: null, reason: null, error: null, receipt: null,
    /** What the user said to it while it was at work, `{id, text, mode}`. */
    told: [],
    /** A part of the history that the model is told as a summary since this turn; `id` is null if there was none. */
    compaction: null,
    /** What its stop did with the messages that waited, `{policy, kept, returned, withdrawn}`. */
    inbox: null,
    /** The messages that the turn added to the transcript. */
    messages: [],
    /** Tokens of all its model calls, `{calls, input_tokens, output_tokens, source}`. */
    usage: null,
    /** Why it is no part of the conversation any more: `resumed`, `rolled_back` or `asked_again`. */
    leftOut: null,
    /** The turn whose finished goals it takes over. */
    resumed: null,
  };
}

/** Something of a goal, in the plan or of a sub-agent. */
function onGoal(turn, event, change) {
  advance(turn, "running");
  const goal = goalOf(turn, event.goal_id);
  if (goal !== undefined) change(goal, event);
}

/** The wait before another attempt is over. */
function awake(change) {
  return (goal, event) => {
    change(goal, event);
    goal.retry = null;
  };
}

function think(goal, event) {
  if (goal.thinking && goal.thoughtUpTo < goal.parts.length) goal.thinking += "\n\n";
  goal.thinking += event.text;
  goal.thoughtUpTo = goal.parts.length;
}

function stopPart(turn, event) {
  const goal = goalOf(turn, event.goal_id);
  if (goal === undefined) return;
  const part = event.call_id === undefined ? goal : findCall(goal, event.call_id);
  if (part !== undefined) part.stopCause = event.cause;
}

function advance(turn, state) {
  if (RANK[state] > RANK[turn.state]) turn.state = state;
}

function endTurn(turn, event, state) {
  advance(turn, state);
  turn.endedAt = Date.parse(event.at);
  turn.messages = event.messages ?? [];
  turn.error = event.error ?? null;
  turn.usage = event.usage ?? null;
  turn.retry = null;
  if (state === "cancelled") {
    turn.cause = event.cause;
    turn.reason = event.reason ?? null;
    turn.receipt = event.receipt ?? [];
    turn.inbox = event.inbox ?? turn.inbox;
  }
  for (const goal of allGoals(turn)) closeGoal(goal, turn);
}
