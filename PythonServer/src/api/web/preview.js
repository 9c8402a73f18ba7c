// What a goal is at, in one line: the end of what it says while it talks, the beginning once it has ended.

import { openCalls } from "./parts.js";
import { askedWords, failureWords, runningWords } from "./tool_words.js";
import { FINAL_GOAL, retryWords } from "./words.js";

const CHARS = 160;

/** Whether it works: it has begun and is not over. */
export const isLive = (goal) => goal.status !== "NOT_STARTED" && !FINAL_GOAL.has(goal.status);

/** `{words, isEnd}`; `isEnd`: it is the end of something longer. */
export function previewOf(goal, now) {
  const said = isLive(goal) && goal.retry === null && openCalls(goal).length === 0 ? newest(goal) : "";
  return said === "" ? { words: doing(goal, now), isEnd: false } : { words: end(said), isEnd: true };
}

function newest({ parts, thinking }) {
  const last = parts.at(-1);
  if (last === undefined) return thinking;
  return last.kind === "text" ? last.text.trim() : "";
}

function doing(goal, now) {
  if (goal.status === "FAILED") return failureWords(goal.error) ?? "";
  if (!isLive(goal)) return beginning(lastText(goal));
  if (goal.retry !== null) return retryWords(goal.retry, now);
  const [call] = openCalls(goal);
  if (call === undefined) return "";
  const { code, kind } = askedWords(call);
  return kind === "shell" ? `${runningWords(call)}: ${beginning(code)}` : runningWords(call);
}

const lastText = (goal) => goal.parts.findLast((part) => part.kind === "text" && part.text.trim() !== "")?.text ?? "";
const beginning = (text) => plain(text.slice(0, CHARS * 2)).slice(0, CHARS);
const end = (text) => plain(text.slice(-CHARS * 2)).slice(-CHARS).trim();

/** Without the marks of Markdown, on one line. */
const plain = (text) => text.replace(/^[#>\s]+|[*`]|^\s*[-+]\s/gm, " ").replace(/\s+/g, " ").trim();
