// The fixed words of the API in the words of the page.

/** The states of a goal that stand for good. */
export const FINAL_GOAL = new Set(["COMPLETED", "FAILED", "CANCELLED"]);

const CAUSES = {
  user: "stopped by you",
  operator: "stopped by an operator",
  deadline: "stopped: deadline",
  output_limit: "stopped: output limit",
  liveness: "stopped: no progress",
  shutdown: "stopped: server shutdown",
  server_lost: "stopped: server lost",
  parent: "stopped: its parent was stopped",
  dependency: "stopped: a goal it needs did not finish",
  client_gone: "stopped: the reader hung up",
  redirect: "stopped: redirected",
};

const CAUSES_EXPLAINED = {
  deadline: "The turn took longer than it was allowed to.",
  output_limit: "The answer grew longer than it was allowed to.",
  liveness: "Nothing had happened for too long.",
  shutdown: "The server was shut down while it worked on this.",
  server_lost: "The server went away while it worked on this.",
  client_gone: "Whoever started this wanted it stopped when they left.",
};

const KINDS = {
  model_call: ["model call", "model calls"],
  tool: ["tool call", "tool calls"],
  process: ["process", "processes"],
  question: ["question", "questions"],
  wait: ["wait", "waits"],
  goal: ["goal", "goals"],
  sub_run: ["delegation", "delegations"],
};

const OUTCOMES = {
  cancelled: "cancelled",
  aborted: "cut off",
  killed: "killed",
  already_done: "already done",
  not_started: "never started",
  abandoned: "abandoned",
  failed: "failed",
};

export const RUN_STATES = {
  queued: "starting",
  running: "working",
  awaiting_answer: "has a question",
  stopping: "stopping",
  awaiting_input: "ready",
  completed: "completed",
  cancelled: "ended",
  failed: "failed",
};

const plain = (word) => String(word ?? "").replaceAll("_", " ");

export const WAYS_BACK = {
  resume: { word: "Resume", doing: "Resuming…", explained: "Keep the finished goals and go on with the others" },
  regenerate: { word: "Ask again", doing: "Asking again…", explained: "Ask the same message again, in place of this turn" },
  compact: {
    word: "Shorten history", doing: "Shortening…",
    explained: "Tell the model the older messages as a summary; they stay here, and it can be undone",
  },
  rollback: { word: "Take it out", doing: "Taking it out…", explained: "Take this turn out of the conversation" },
};

const LEFT_OUT = {
  resumed: "resumed below",
  asked_again: "asked again below",
  rolled_back: "taken out of the conversation",
};

export const leftOutWords = (why) => LEFT_OUT[why] ?? plain(why);
export const causeWords = (cause) => CAUSES[cause] ?? `stopped: ${plain(cause) || "unknown cause"}`;
export const causeExplained = (cause) => CAUSES_EXPLAINED[cause] ?? null;
/** Why the user, or an operator, has stopped a turn, in their own words. */
export function reasonWords({ cause, reason }) {
  if (!reason) return null;
  return cause === "user" && reason === "interrupted by a message" ? "Your next message took its place." : `“${reason}”`;
}

export const outcomeWords = (outcome) => OUTCOMES[outcome] ?? plain(outcome);
export const runStateWords = (state) => RUN_STATES[state] ?? plain(state);

export function kindWords(kind, count = 1) {
  const words = KINDS[kind] ?? [plain(kind), `${plain(kind)}s`];
  return words[count === 1 ? 0 : 1];
}

/** "2 model calls cancelled, 1 goal never started". */
export function receiptSummary(receipt) {
  const isMoreThanGoals = receipt.some((item) => item.kind !== "goal");
  const counts = new Map();
  for (const item of receipt) {
    // A goal that was cancelled says no more than its calls do.
    if (item.kind === "goal" && item.outcome === "cancelled" && isMoreThanGoals) continue;
    const key = `${item.kind} ${item.outcome}`;
    counts.set(key, { ...item, count: (counts.get(key)?.count ?? 0) + 1 });
  }
  const parts = [...counts.values()].map(
    ({ kind, outcome, count }) => `${count} ${kindWords(kind, count)} ${outcomeWords(outcome)}`,
  );
  return parts.length > 0 ? parts.join(", ") : "nothing was running";
}

/** "3 model calls · ≈ 1,234 tokens in, 567 out"; null if no call was made. */
export function usageWords(usage) {
  if (usage === null) return null;
  const calls = `${usage.calls} ${kindWords("model_call", usage.calls)}`;
  const numbers = [[usage.input_tokens, "in"], [usage.output_tokens, "out"]].filter(([number]) => number !== null);
  if (numbers.length === 0) return `${calls} · tokens unknown`;
  const about = usage.source === "observed" ? "" : "≈ ";
  const [first, ...others] = numbers.map(([number, way]) => [number.toLocaleString("en"), way]);
  return `${calls} · ${about}${[`${first[0]} tokens ${first[1]}`, ...others.map((each) => each.join(" "))].join(", ")}`;
}

/** What a goal's state is called, and which icon it has. */
export function goalState(goal, isStopping) {
  switch (goal.status) {
    case "COMPLETED": return { icon: "done", word: goal.isKept ? "kept" : "done" };
    case "FAILED": return { icon: "failed", word: "failed" };
    case "CANCELLED":
      if (goal.stopCause !== null) return { icon: "stopped", word: causeWords(goal.stopCause) };
      if (goal.startedAt !== null) return { icon: "stopped", word: "stopped" };
      return { icon: "skipped", word: goal.cause === "dependency" ? "skipped" : "never started" };
    case "NOT_STARTED": return { icon: "waiting", word: "waiting" };
    default:
      if (isStopping) return { icon: "working", word: "stopping" };
      return goal.retry ? { icon: "paused", word: "retrying" } : { icon: "working", word: "working" };
  }
}

export function retryWords(retry, now) {
  const seconds = Math.ceil((retry.until - now) / 1000);
  const when = seconds > 0 ? `in ${spell(seconds)}` : "now";
  const why = /\b429\b|too many|busy|overloaded/i.test(retry.reason ?? "") ? "The model is busy" : "The model call failed";
  if (retry.fallback !== null) return `${why}, going on with the fallback model “${retry.fallback}” ${when}`;
  return `${why}, trying again ${when} (attempt ${retry.attempt + 1} of ${retry.maxAttempts})`;
}

export const fallbackWords = (model) => `The fallback model “${model}” has taken over.`;

const spell = (seconds) => (seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`);

/** "4.2 s", "1:05". */
export function duration(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}
