// What a goal says and does, in order: pieces of text, the tool calls between them, and what the user said meanwhile.
// Parts are only ever added.

import { beginCall, beginText, noteResult } from "./rounds.js";
import { readResult } from "./tool_results.js";

/** Characters of a call's output that are kept at most, and how many are left when the oldest ones go. */
const KEPT = 60000;
const LEFT = 40000;

export function addText(goal, { text }) {
  beginText(goal);
  const last = goal.parts.at(-1);
  if (last?.kind === "text") last.text += text;
  else goal.parts.push({ kind: "text", text });
}

/** The goal's whole answer is known: it is what was said last. */
export function settleAnswer(goal, result) {
  const last = goal.parts.at(-1);
  if (!result.trim() || (last?.kind === "call" && last.content === result)) return; // a goal that is one tool call
  if (last?.kind === "text") last.text = result;
  else goal.parts.push({ kind: "text", text: result });
}

export function addCall(goal, event) {
  beginCall(goal);
  goal.parts.push({
    kind: "call", id: event.call_id, name: event.name, arguments: event.arguments,
    /** `running`, `done`, `failed` or `stopped`. */
    state: "running",
    startedAt: Date.parse(event.at), endedAt: null,
    /** `{stream, text}` pieces; neighbours are of different streams. `cut` counts the characters that are gone. */
    output: [], kept: 0, cut: 0,
    /** The result as the model reads it, and how it ended in a word or two; null while there is none. */
    content: null, exit: null, note: null,
    /** The goals of the sub-agents that work for it. */
    goals: [],
    /** The cause of a stop of this call alone. */
    stopCause: null,
    /** What it asks the user. */
    question: null,
  });
}

export function addOutput(goal, event) {
  const call = findCall(goal, event.call_id);
  if (call !== undefined) addPiece(call, event.stream, event.text);
}

export function endCall(goal, event) {
  const call = findCall(goal, event.call_id);
  if (call === undefined || call.content !== null) return;
  noteResult(goal);
  const { state, exit, note, pieces } = readResult(call, event.content, event.is_error);
  Object.assign(call, { content: event.content, state, exit, note });
  call.endedAt ??= Date.parse(event.at);
  for (const { stream, text } of pieces) addPiece(call, stream, text);
}

/** The goal is final, or its turn is over: a call without a result will not get one. */
export function closeCalls(goal, at) {
  for (const call of openCalls(goal)) {
    Object.assign(call, { state: "stopped", endedAt: at });
    if (call.question?.end === null) Object.assign(call.question, { end: "cancelled", cause: goal.cause });
  }
}

export const openCalls = (goal) => goal.parts.filter((part) => part.kind === "call" && part.state === "running");
export const hasText = (goal) => goal.parts.some((part) => part.kind === "text" && part.text.trim() !== "");

export function findCall(goal, callId) {
  return goal.parts.findLast((part) => part.kind === "call" && part.id === callId);
}

function addPiece(call, stream, text) {
  if (text === "") return;
  const last = call.output.at(-1);
  if (last?.stream === stream) last.text += text;
  else call.output.push({ stream, text });
  call.kept += text.length;
  if (call.kept > KEPT) cutBeginning(call);
}

function cutBeginning(call) {
  let over = call.kept - LEFT;
  call.kept -= over;
  call.cut += over;
  while (over > 0) {
    const first = call.output[0];
    const cut = Math.min(over, first.text.length);
    first.text = first.text.slice(cut);
    over -= cut;
    if (first.text === "") call.output.shift();
  }
}
