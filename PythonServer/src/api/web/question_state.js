// The questions of a turn: each belongs to the call of ask_user that asks it.

import { allGoals, goalOf } from "./goal_state.js";
import { findCall } from "./parts.js";

export function askQuestion(turn, event) {
  const call = callOf(turn, event);
  if (call === undefined) return;
  call.question = {
    id: event.interrupt_id, text: event.question, options: event.options ?? null,
    expiresAt: event.expires_at === null ? null : Date.parse(event.expires_at),
    /** `answered`, `declined`, `cancelled` or `expired`; null while it waits. */
    end: null, answer: null, comment: null, cause: null,
  };
}

export function settleQuestion(turn, event) {
  const question = callOf(turn, event)?.question;
  if (question?.end !== null) return;
  const { disposition: end, answer = null, comment = null, cause = null } = event;
  Object.assign(question, { end, answer, comment, cause });
}

/** The calls of a turn whose questions wait for an answer. */
export function openQuestions(turn) {
  if (turn === null) return [];
  return allGoals(turn).flatMap((goal) => goal.parts).filter((part) => part.question?.end === null);
}

function callOf(turn, event) {
  const goal = goalOf(turn, event.goal_id);
  return goal === undefined ? undefined : findCall(goal, event.call_id);
}
