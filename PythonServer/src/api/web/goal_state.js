// The goals of a turn: those of its plan, and those that its tool calls have delegated to sub-agents.

import { closeCalls, findCall, settleAnswer } from "./parts.js";
import { closeRounds, newRounds } from "./rounds.js";
import { FINAL_GOAL } from "./words.js";

/** A goal of the plan or of a sub-agent; undefined if the turn has none of this id. */
export const goalOf = (turn, id) => turn.goals.get(id) ?? turn.delegated.get(id);

export const allGoals = (turn) => [...turn.goals.values(), ...turn.delegated.values()];

/** Take in a plan as it is told. */
export function takePlan(turn, goals) {
  turn.top = goals.map((goal) => takeGoal(turn, goal, turn.goals));
}

export function setStatus(goal, event) {
  if (FINAL_GOAL.has(goal.status)) return;
  goal.status = event.status;
  goal.cause = event.cause ?? null;
  goal.error = event.error ?? null;
  if (event.result != null) settleAnswer(goal, event.result);
  goal.retry = null;
  if (!FINAL_GOAL.has(event.status)) {
    goal.startedAt = Date.parse(event.at);
    return;
  }
  goal.endedAt = Date.parse(event.at);
  closeCalls(goal, goal.endedAt);
  closeRounds(goal);
}

/** Its turn is over: nothing of it stays alive on the page. */
export function closeGoal(goal, turn) {
  goal.retry = null;
  if (!FINAL_GOAL.has(goal.status)) goal.cause ??= turn.cause;
  closeCalls(goal, turn.endedAt);
  closeRounds(goal);
  if (FINAL_GOAL.has(goal.status)) return;
  goal.status = "CANCELLED";
  if (goal.startedAt !== null) goal.endedAt ??= turn.endedAt;
}

function takeGoal(turn, told, into) {
  const known = into.get(told.id);
  const goal = known ?? newGoal(told, turn.resumed?.goals.get(told.id));
  into.set(told.id, goal);
  Object.assign(goal, {
    title: told.title, dependsOn: told.depends_on, cause: told.cause, error: told.error,
    startedAt: told.started_at ? Date.parse(told.started_at) : null,
    endedAt: told.ended_at ? Date.parse(told.ended_at) : null,
  });
  if (known === undefined || !FINAL_GOAL.has(known.status)) goal.status = told.status;
  if (told.result != null) settleAnswer(goal, told.result);
  goal.goals = told.goals.map((child) => takeGoal(turn, child, into));
  for (const each of told.delegated ?? []) attach(goal, takeGoal(turn, each, turn.delegated), each.call_id);
  return goal;
}

/** A sub-agent's goal is shown where it belongs: at the tool call that it works for. */
function attach(owner, goal, callId) {
  const call = findCall(owner, callId);
  if (call !== undefined && !call.goals.some(({ id }) => id === goal.id)) call.goals.push(goal);
}

/** `before` is the goal of the turn that is resumed: if it was finished, it is kept with all that it said and did. */
function newGoal({ id, prompt }, before) {
  const isKept = before?.status === "COMPLETED";
  return {
    id, prompt: prompt ?? null, isKept,
    parts: isKept ? structuredClone(before.parts) : [], thinking: isKept ? before.thinking : "", thoughtUpTo: 0,
    rounds: newRounds(),
    /** What the user said that the model answers next. */
    upcoming: [],
    /** A wait before another attempt, and the fallback model that is asked since one. */
    retry: null, fallback: isKept ? before.fallback : null,
    /** The cause of a stop of this goal alone. */
    stopCause: null,
  };
}
