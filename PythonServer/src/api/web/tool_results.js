// What came of a tool call, as the page shows it: its state, how it ended in a word, and the output that it adds.

import { commandNote, isAnswer, isCommandResult, parseObject, readable, sentence } from "./tool_words.js";

/** The first line of a result that stands for a stopped call. */
const STOPPED = /^cancelled(?: by operator|: \w+)$/;

/**
 * `{state, exit, note, pieces}` of a call's result. `pieces` is output that was not seen while it ran; `exit` and
 * `note` say how it ended and what kept it from ending by itself, or are null.
 */
export function readResult(call, content, isError) {
  const [first] = content.split("\n", 1);
  const isStopped = isError && STOPPED.test(first);
  const state = isStopped ? "stopped" : isError ? "failed" : "done";
  const body = isStopped ? content.slice(first.length + 1) : content;
  const { exit = null, note = null, pieces } = readBody(call, body);
  return { state, exit: isStopped ? null : exit, note: isStopped ? null : note, pieces };
}

function readBody(call, body) {
  const result = parseObject(body);
  if (isCommandResult(result)) return command(result, call.output.length > 0);
  if (call.name === "http_request" && isAnswer(result)) return answer(result);
  if (call.name === "delegate" && call.goals.length > 0 && Array.isArray(result?.goals)) return { pieces: [] }; // seen
  return { pieces: [piece("result", readable(body))] };
}

function command(result, hasOutput) {
  const note = commandNote(result);
  const stderr = note === null ? result.stderr : result.stderr.split("\n").slice(0, -1).join("\n");
  const pieces = hasOutput ? [] : [piece("stdout", result.stdout), piece("stderr", stderr)];
  return { exit: note === null ? `exit ${result.exit_code}` : null, note, pieces };
}

function answer({ status, body, error }) {
  return { exit: status === null ? null : String(status), note: sentence(error), pieces: [piece("result", readable(body))] };
}

const piece = (stream, text) => ({ stream, text });
