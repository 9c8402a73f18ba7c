// What the events of a turn add up to: its state, its goals, and how it ended.

import { addCall, addOutput, addText, closeCalls, endCall, settleAnswer } from "./parts.js";

export const FINAL_GOAL = new Set(["COMPLETED", "FAILED", "CANCELLED"]);

/** A turn only moves to the right: nothing brings "stopping" back to "running". */
const RANK = { queued: 0, running: 1, stopping: 2, completed: 3, cancelled: 3, failed: 3 };

export const isOpen = (turn) => RANK[turn.state] < RANK.completed;

/** Take in an event of the turn. What comes late for one that has ended changes nothing. */
export function tell(turn, event) {
  if (isOpen(turn)) ON_TURN[event.type]?.(turn, event);
}

const ON_TURN = {
  plan_updated(turn, event) {
    advance(turn, "running");
    turn.note = event.note ?? null;
    turn.retry = null;
    turn.top = event.goals.map((goal) => takeGoal(turn, goal));
  },
  goal_status(turn, event) {
    advance(turn, "running");
    const goal = turn.goals.get(event.goal_id);
    if (goal === undefined || FINAL_GOAL.has(goal.status)) return;
    goal.status = event.status;
    goal.cause = event.cause ?? null;
    goal.error = event.error ?? null;
    if (event.result != null) settleAnswer(goal, event.result);
    goal.retry = null;
    if (FINAL_GOAL.has(event.status)) endGoal(goal, Date.parse(event.at));
    else goal.startedAt = Date.parse(event.at);
  },
  text(turn, event) {
    advance(turn, "running");
    const goal = turn.goals.get(event.goal_id);
    if (goal === undefined) return;
    addText(goal, event.text);
    goal.retry = null;
  },
  reasoning(turn, event) {
    advance(turn, "running");
    const goal = turn.goals.get(event.goal_id);
    if (goal === undefined) return;
    if (goal.thinking && goal.thoughtUpTo < goal.parts.length) goal.thinking += "\n\n";
    goal.thinking += event.text;
    goal.thoughtUpTo = goal.parts.length;
  },
  tool_call: (turn, event) => onGoal(turn, event, addCall),
  tool_output: (turn, event) => onGoal(turn, event, addOutput),
  tool_result: (turn, event) => onGoal(turn, event, endCall),
  retry(turn, event) {
    const retry = {
      attempt: event.attempt, maxAttempts: event.max_attempts, isCapped: event.capped, reason: event.reason,
      until: Date.parse(event.at) + event.wait_ms,
    };
    const goal = turn.goals.get(event.goal_id);
    if (goal === undefined) turn.retry = retry;
    else goal.retry = retry;
  },
  usage(turn, event) {
    if (event.goal_id === undefined) turn.retry = null;
  },
  stop_requested(turn, event) {
    advance(turn, "stopping");
    turn.cause = event.cause;
    turn.reason = event.reason ?? null;
  },
  turn_completed: (turn, event) => endTurn(turn, event, "completed"),
  turn_cancelled: (turn, event) => endTurn(turn, event, "cancelled"),
  turn_failed: (turn, event) => endTurn(turn, event, "failed"),
};

/** `handedIn` are the messages that came before it from elsewhere. */
export function newTurn(event, handedIn) {
  return {
    handedIn,
    id: event.turn_id, number: event.number, input: event.input, seq: event.seq, state: "queued",
    messageId: event.message_id ?? null,
    startedAt: Date.parse(event.at), endedAt: null,
    /** goal id -> goal, parents before children; `top` holds the outermost ones. */
    goals: new Map(), top: [],
    note: null, retry: null, cause: null, reason: null, error: null, receipt: null,
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

function takeGoal(turn, told) {
  const known = turn.goals.get(told.id);
  const goal = known ?? newGoal(told.id, turn.resumed?.goals.get(told.id));
  turn.goals.set(told.id, goal);
  Object.assign(goal, {
    title: told.title, dependsOn: told.depends_on, cause: told.cause, error: told.error,
    startedAt: told.started_at ? Date.parse(told.started_at) : null,
    endedAt: told.ended_at ? Date.parse(told.ended_at) : null,
  });
  if (known === undefined || !FINAL_GOAL.has(known.status)) goal.status = told.status;
  if (told.result != null) settleAnswer(goal, told.result);
  goal.goals = told.goals.map((child) => takeGoal(turn, child));
  return goal;
}

/** `before` is the goal of the turn that is resumed: if it was finished, it is kept with all that it said and did. */
function newGoal(id, before) {
  const isKept = before?.status === "COMPLETED";
  const goal = { id, parts: [], thinking: "", thoughtUpTo: 0, retry: null, isKept };
  return isKept ? { ...goal, parts: structuredClone(before.parts), thinking: before.thinking } : goal;
}

/** Something of a goal's tools. */
function onGoal(turn, event, change) {
  advance(turn, "running");
  const goal = turn.goals.get(event.goal_id);
  if (goal === undefined) return;
  change(goal, event);
  goal.retry = null;
}

function endGoal(goal, at) {
  goal.endedAt = at;
  closeCalls(goal, at);
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
  }
  for (const goal of turn.goals.values()) {
    goal.retry = null;
    closeCalls(goal, turn.endedAt);
    if (FINAL_GOAL.has(goal.status)) continue;
    goal.status = "CANCELLED"; // nothing stays alive on the page after its turn
    goal.cause ??= turn.cause;
    if (goal.startedAt !== null) goal.endedAt ??= turn.endedAt;
  }
}
