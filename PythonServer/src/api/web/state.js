// What the events of a run add up to. Replay and live go through the same function, so a reload shows what was seen.
// No clock, no network, no DOM: the same events always give the same state.

export const FINAL_GOAL = new Set(["COMPLETED", "FAILED", "CANCELLED"]);

/** A turn only moves to the right: nothing brings "stopping" back to "running". */
const RANK = { queued: 0, running: 1, stopping: 2, completed: 3, cancelled: 3, failed: 3 };

export function newChat() {
  return {
    seq: 0,
    sessionId: null,
    isInteractive: true,
    metadata: {},
    /** `open`, `parked` or `over`. */
    phase: "parked",
    /** id -> turn, oldest first. */
    turns: new Map(),
    /** message id -> `{id, text, seq, fate}`; the fate is `queued`, `held`, `returned` or `withdrawn`. */
    messages: new Map(),
    /** How the run ended: `{state, cause, reason, error}`. */
    end: null,
  };
}

export const isOpen = (turn) => RANK[turn.state] < RANK.completed;
export const lastTurn = (chat) => [...chat.turns.values()].at(-1) ?? null;

/** The turn that a stop would reach, or null. */
export function openTurn(chat) {
  const turn = lastTurn(chat);
  return turn !== null && isOpen(turn) ? turn : null;
}

/** Take in one event. Returns the id of the turn that it changed, or null. An event is taken once. */
export function apply(chat, event) {
  if (event.seq <= chat.seq) return null;
  chat.seq = event.seq;
  ON_CHAT[event.type]?.(chat, event);
  const turn = chat.turns.get(event.turn_id);
  if (turn === undefined) return null;
  if (isOpen(turn)) ON_TURN[event.type]?.(turn, event); // what comes late for a turn that has ended changes nothing
  return turn.id;
}

const ON_CHAT = {
  run_started(chat, event) {
    chat.sessionId = event.session_id;
    chat.isInteractive = event.interactive;
    chat.metadata = event.metadata ?? {};
  },
  turn_started(chat, event) {
    chat.phase = "open";
    chat.turns.set(event.turn_id, newTurn(event));
  },
  awaiting_input(chat) {
    chat.phase = "parked";
  },
  stop_requested(chat) {
    for (const message of chat.messages.values()) if (message.fate === "queued") message.fate = "held";
  },
  message_queued(chat, event) {
    chat.messages.set(event.message_id, { id: event.message_id, text: event.text, seq: event.seq, fate: "queued" });
  },
  message_delivered(chat, event) {
    const wasHeld = chat.messages.get(event.message_id)?.fate === "held";
    chat.messages.delete(event.message_id);
    if (!wasHeld) return;
    for (const message of chat.messages.values()) if (message.fate === "held") message.fate = "queued";
  },
  message_returned: (chat, event) => settleMessage(chat, event, "returned"),
  message_withdrawn: (chat, event) => settleMessage(chat, event, "withdrawn"),
  run_completed: (chat, event) => endRun(chat, event, "completed"),
  run_cancelled: (chat, event) => endRun(chat, event, "cancelled"),
  run_failed: (chat, event) => endRun(chat, event, "failed"),
};

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
    if (event.result != null) goal.text = event.result;
    goal.retry = null;
    if (FINAL_GOAL.has(event.status)) goal.endedAt = Date.parse(event.at);
    else goal.startedAt = Date.parse(event.at);
  },
  text(turn, event) {
    advance(turn, "running");
    const goal = turn.goals.get(event.goal_id);
    if (goal === undefined) return;
    goal.text += event.text;
    goal.retry = null;
  },
  reasoning(turn, event) {
    advance(turn, "running");
    const goal = turn.goals.get(event.goal_id);
    if (goal !== undefined) goal.thinking += event.text;
  },
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

function newTurn(event) {
  return {
    id: event.turn_id, number: event.number, input: event.input, seq: event.seq, state: "queued",
    messageId: event.message_id ?? null,
    startedAt: Date.parse(event.at), endedAt: null,
    /** goal id -> goal, parents before children; `top` holds the outermost ones. */
    goals: new Map(), top: [],
    note: null, retry: null, cause: null, reason: null, error: null, receipt: null,
    /** The messages that the turn added to the transcript. */
    messages: [],
  };
}

function takeGoal(turn, told) {
  const known = turn.goals.get(told.id);
  const goal = known ?? { id: told.id, text: "", thinking: "", retry: null };
  turn.goals.set(told.id, goal);
  Object.assign(goal, {
    title: told.title, dependsOn: told.depends_on, cause: told.cause, error: told.error,
    startedAt: told.started_at ? Date.parse(told.started_at) : null,
    endedAt: told.ended_at ? Date.parse(told.ended_at) : null,
  });
  if (known === undefined || !FINAL_GOAL.has(known.status)) goal.status = told.status;
  if (told.result != null) goal.text = told.result;
  goal.goals = told.goals.map((child) => takeGoal(turn, child));
  return goal;
}

function advance(turn, state) {
  if (RANK[state] > RANK[turn.state]) turn.state = state;
}

function endTurn(turn, event, state) {
  advance(turn, state);
  turn.endedAt = Date.parse(event.at);
  turn.messages = event.messages ?? [];
  turn.error = event.error ?? null;
  turn.retry = null;
  if (state === "cancelled") {
    turn.cause = event.cause;
    turn.reason = event.reason ?? null;
    turn.receipt = event.receipt ?? [];
  }
  for (const goal of turn.goals.values()) {
    goal.retry = null;
    if (FINAL_GOAL.has(goal.status)) continue;
    goal.status = "CANCELLED"; // nothing stays alive on the page after its turn
    goal.cause ??= turn.cause;
    if (goal.startedAt !== null) goal.endedAt ??= turn.endedAt;
  }
}

function settleMessage(chat, event, fate) {
  const known = chat.messages.get(event.message_id);
  chat.messages.set(event.message_id, { id: event.message_id, seq: event.seq, ...known, text: event.text, fate });
}

function endRun(chat, event, state) {
  chat.phase = "over";
  chat.end = { state, cause: event.cause ?? null, reason: event.reason ?? null, error: event.error ?? null };
}
