// Tool calls in words: what was asked for, and what came of it.

/** The first line of a result that stands for a stopped call. */
const STOPPED = /^cancelled(?: by operator|: \w+)$/;

/** `{code, options}`: what a call does, to be shown as code, and what else it was told. `isCommand`: it is a shell's. */
export function askedWords({ name, arguments: text }) {
  const told = parseObject(text);
  if (told === null) return { code: text, options: "", isCommand: false };
  const { command, ...rest } = told;
  if (name === "shell" && typeof command === "string") {
    const options = Object.entries(rest).map(([key, value]) => `${key}: ${value}`).join(", ");
    return { code: command, options, isCommand: true };
  }
  return { code: Object.keys(told).length > 0 ? pretty(told) : "", options: "", isCommand: false };
}

/**
 * `{state, exitCode, note, pieces}` of a call's result. `pieces` is output that was not seen while it ran; `note` says
 * what kept a command from ending by itself.
 */
export function readResult(content, isError, hasOutput) {
  const [first] = content.split("\n", 1);
  const isStopped = isError && STOPPED.test(first);
  const state = isStopped ? "stopped" : isError ? "failed" : "done";
  const body = isStopped ? content.slice(first.length + 1) : content;
  const command = parseCommandResult(body);
  if (command === null) return { state, exitCode: null, note: null, pieces: [piece("result", readable(body))] };
  const { stdout, stderr, note } = command;
  const pieces = hasOutput ? [] : [piece("stdout", stdout), piece("stderr", stderr)];
  const isByItself = note === null && !isStopped;
  return { state, exitCode: isByItself ? command.exit_code : null, note: isStopped ? null : note, pieces };
}

/** Why something failed; a command's whole result says no more than its end. */
export function failureWords(error) {
  const command = parseCommandResult(error ?? "");
  if (command === null) return error;
  return command.note ?? `The command ended with exit code ${command.exit_code}.`;
}

/** The state of a call, and which icon it has; `isStopping` is of its turn. */
export function callState(call, isStopping) {
  const exit = call.exitCode === null ? "" : ` · exit ${call.exitCode}`;
  switch (call.state) {
    case "done": return { icon: "done", word: `done${exit}` };
    case "failed": return { icon: "failed", word: `failed${exit}` };
    case "stopped": return { icon: "stopped", word: "stopped" };
    default: return { icon: "working", word: isStopping ? "stopping" : "running" };
  }
}

const piece = (stream, text) => ({ stream, text });
const pretty = (value) => JSON.stringify(value, null, 2);

function readable(text) {
  const object = parseObject(text);
  return object === null ? text : pretty(object);
}

/** A shell's result; what ended a command is the last line of its stderr then, and the exit code is -1. */
function parseCommandResult(text) {
  const result = parseObject(text);
  if (typeof result?.exit_code !== "number" || typeof result.stderr !== "string") return null;
  if (result.exit_code !== -1) return { ...result, note: null };
  const lines = result.stderr.split("\n");
  const note = lines.pop();
  return { ...result, stderr: lines.join("\n"), note: note[0]?.toUpperCase() + note.slice(1) };
}

function parseObject(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
