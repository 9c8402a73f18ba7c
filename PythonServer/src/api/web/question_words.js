// Questions to the user, in words.

import { causeWords } from "./words.js";

const ENDS = {
  answered: { icon: "done", word: "answered by you" },
  declined: { icon: "skipped", word: "skipped by you" },
  expired: { icon: "failed", word: "expired: nobody answered in time" },
};

/** How a question stands, and which icon that has. */
export function questionState(question, isStopping, isSending) {
  if (question.end === null) {
    if (isStopping) return { icon: "stopped", word: "stopping" };
    return isSending ? { icon: "working", word: "sending" } : { icon: "paused", word: "waits for you" };
  }
  return ENDS[question.end] ?? { icon: "stopped", word: question.cause === null ? "withdrawn" : causeWords(question.cause) };
}

/** "expires in 4:05"; "" if it never does. */
export function timeLeft(question, now) {
  if (question.expiresAt === null || question.end !== null) return "";
  const seconds = Math.ceil((question.expiresAt - now) / 1000);
  return seconds > 0 ? `expires in ${spell(seconds)}` : "its time is over";
}

export const waitingWords = (count) => (count === 1 ? "Waiting for your answer" : `${count} questions wait for your answer`);

function spell(seconds) {
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}
