// The HTTP API: one function a route. Everything that goes wrong comes out as an ApiError.

import { getToken } from "./token.js";

/** `status` is 0 when the server was not reached; `detail` is written for the user. */
export class ApiError extends Error {
  constructor(status, code, detail, { retryAfterMs = null, problem = {} } = {}) {
    super(detail);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.retryAfterMs = retryAfterMs;
    this.problem = problem;
  }

  /** Whether the same request may succeed if it is made again. */
  get isPassing() {
    return this.status === 0 || [429, 502, 503, 504].includes(this.status);
  }
}

/** Milliseconds by which this machine's clock is ahead of the server's. */
let clockLead = 0;

/** The time at the server, in milliseconds since the epoch: event times are compared with this. */
export function serverNow() {
  return Date.now() - clockLead;
}

function learnClock(response) {
  const sent = Date.parse(response.headers.get("Date") ?? "");
  const lead = Date.now() - sent;
  clockLead = Number.isFinite(lead) && Math.abs(lead) > 2000 ? lead : 0; // the header counts whole seconds
}

async function request(method, path, { body, headers = {}, signal } = {}) {
  const sent = { Authorization: `Bearer ${getToken() ?? ""}`, ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers: sent, signal, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server cannot be reached");
  }
  learnClock(response);
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // a proxy's page, or nothing: the status has to do
  }
  const seconds = Number(response.headers.get("Retry-After"));
  const detail = problem.detail || problem.title || `The server answered ${response.status}`;
  const retryAfterMs = seconds > 0 ? seconds * 1000 : null;
  return new ApiError(response.status, problem.code ?? "", detail, { retryAfterMs, problem });
}

async function json(method, path, options) {
  const response = await request(method, path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server's answer broke off");
  }
}

const run = (runId, rest = "") => `v1/runs/${encodeURIComponent(runId)}${rest}`;

export const listRuns = (cursor) =>
  json("GET", `v1/runs?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
export const listRunsOf = (sessionId, cursor, signal) => {
  const query = new URLSearchParams({ session_id: sessionId, limit: "200", ...(cursor ? { cursor } : {}) });
  return json("GET", `v1/runs?${query}`, { signal });
};
export const getRun = (runId) => json("GET", run(runId));
export const createRun = (body, key) =>
  json("POST", "v1/runs", { body, headers: { "Idempotency-Key": key } });
/** `means` is `{mode, if_turn}` of a message to a turn at work, or empty. */
export const sendInput = (runId, text, clientMessageId, means) =>
  json("POST", run(runId, "/input"), { body: { text, client_message_id: clientMessageId, ...means } });
export const withdrawMessage = (runId, id) => json("DELETE", run(runId, `/inbox/${encodeURIComponent(id)}`));
export const moveMessage = (runId, id, position) =>
  json("PATCH", run(runId, `/inbox/${encodeURIComponent(id)}`), { body: { position } });
export const resolveQuestion = (runId, id, resolution) =>
  json("POST", run(runId, `/interrupts/${encodeURIComponent(id)}/resolve`), { body: resolution });
export const cancelRun = (runId, turnId) =>
  json("POST", run(runId, "/cancel"), { body: { if_turn: turnId } });
export const cancelGoal = (runId, goalId, turnId) =>
  json("POST", run(runId, `/goals/${encodeURIComponent(goalId)}/cancel`), { body: { if_turn: turnId } });
export const cancelCall = (runId, callId, turnId) =>
  json("POST", run(runId, `/calls/${encodeURIComponent(callId)}/cancel`), { body: { if_turn: turnId } });
export const terminateRun = (runId) => json("POST", run(runId, "/terminate"), { body: {} });
export const resumeRun = (runId, turnId) => json("POST", run(runId, "/resume"), { body: { if_turn: turnId } });
export const regenerateRun = (runId, turnId) => json("POST", run(runId, "/regenerate"), { body: { if_turn: turnId } });
export const compactRun = (runId, turnId) => json("POST", run(runId, "/compact"), { body: { if_turn: turnId } });
export const undoCompaction = (runId, turnId) =>
  json("POST", run(runId, "/compact"), { body: { if_turn: turnId, undo: true } });
export const rollBackRun = (runId, turnId) => json("POST", run(runId, "/rollback"), { body: { if_turn: turnId } });

/** The open response of the run's event stream, from the event behind `after` on. */
export const openEvents = (runId, after, signal) =>
  request("GET", run(runId, "/events"), {
    signal,
    headers: { Accept: "text/event-stream", ...(after > 0 ? { "Last-Event-ID": String(after) } : {}) },
  });
