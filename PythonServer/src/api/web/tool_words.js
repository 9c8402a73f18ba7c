// Tool calls in words: what was asked for, and how it is going.

import { FINAL_GOAL, causeWords } from "./words.js";

/**
 * `{name, of, code, options, kind}` of a call: its short title, what the title is of, what it was asked as code, and
 * what else it was told. `kind` is `shell`, `http`, `delegate` or `other`.
 */
export function askedWords(call) {
  const told = parseObject(call.arguments);
  return (told !== null && ASKED[call.name]?.(told)) || other(call, told);
}

const ASKED = {
  shell({ command, ...rest }) {
    if (typeof command !== "string") return null;
    return { name: "shell", of: "", code: command, options: listed(rest), kind: "shell" };
  },
  http_request({ method = "GET", url, body, headers = {}, ...rest }) {
    if (typeof url !== "string") return null;
    return {
      name: String(method).toUpperCase(), of: url.replace(/^https:\/\//, ""), code: body === undefined ? "" : readable(String(body)),
      options: listed({ ...headers, ...rest }), kind: "http",
    };
  },
  // Its goals are shown, so they need not be listed; those that never came to be are.
  delegate: (told) => ({ name: "Sub-agents", of: "", code: pretty(told), options: "", kind: "delegate" }),
};

function other({ name, arguments: text }, told) {
  const code = told === null ? text : Object.keys(told).length > 0 ? pretty(told) : "";
  const [server, ...tool] = name.split("__");
  const isRemote = server !== "" && tool.join("") !== "";
  return { name: isRemote ? tool.join("__") : name, of: isRemote ? server : "", code, options: "", kind: "other" };
}

/** What a stop of this call alone would stop. */
export function callName(call) {
  const { name, of, kind } = askedWords(call);
  return { delegate: "these sub-agents", http: `${name} ${of}` }[kind] ?? `this call of ${name}`;
}

/** What a call is doing, for one line. */
export function runningWords(call) {
  const { name, of, kind } = askedWords(call);
  if (kind === "delegate") {
    const { ended, all } = countGoals(call);
    return all === 0 ? "Asking sub-agents" : `${ended} of ${all} sub-agents`;
  }
  return kind === "http" ? `${name} ${of}` : `Running ${name}`;
}

/** How many goals a call has delegated, how many of them are over, and how many of these are done. */
export function countGoals({ goals }) {
  const done = goals.filter((goal) => goal.status === "COMPLETED").length;
  return { all: goals.length, ended: goals.filter((goal) => FINAL_GOAL.has(goal.status)).length, done };
}

/** Why something failed; a command's whole result says no more than its end. */
export function failureWords(error) {
  const result = parseObject(error ?? "");
  if (isCommandResult(result)) return commandNote(result) ?? `The command ended with exit code ${result.exit_code}.`;
  if (isAnswer(result)) return sentence(result.error) ?? `The server answered ${result.status}.`;
  return error;
}

/** The state of a call, and which icon it has. */
export function callState(call, isStopping) {
  const exit = call.exit === null ? "" : ` · ${call.exit}`;
  switch (call.state) {
    case "done": return { icon: "done", word: `done${exit}` };
    case "failed": return { icon: "failed", word: `failed${exit}` };
    case "stopped": return { icon: "stopped", word: call.stopCause === null ? "stopped" : causeWords(call.stopCause) };
    default: return { icon: "working", word: isStopping ? "stopping" : "running" };
  }
}

export const isCommandResult = (result) => typeof result?.exit_code === "number" && typeof result.stderr === "string";
export const isAnswer = (result) => result !== null && "status" in result && typeof result.body === "string";

/** What ended a command is the last line of its stderr then, and the exit code is -1; else null. */
export function commandNote(result) {
  return result.exit_code === -1 ? sentence(result.stderr.split("\n").at(-1)) : null;
}

export const sentence = (words) => (words ? words[0].toUpperCase() + words.slice(1) : null);
export const pretty = (value) => JSON.stringify(value, null, 2);

/** An object's JSON with line breaks; any other text as it is. */
export function readable(text) {
  const object = parseObject(text);
  return object === null ? text : pretty(object);
}

export function parseObject(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function listed(options) {
  const word = (value) => (typeof value === "object" ? JSON.stringify(value) : value);
  return Object.entries(options).map(([key, value]) => `${key}: ${word(value)}`).join(", ");
}
