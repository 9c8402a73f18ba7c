// The chat page: puts the parts together, and turns what the user does into calls.

import { serverNow } from "./api.js";
import { Conversation } from "./conversation.js";
import { forgetToken, getToken, setToken, takeTokenFromAddress } from "./token.js";
import { Announcer } from "./view/announcer.js";
import { setText, showText } from "./view/dom.js";
import { ProgressView } from "./view/progress.js";
import { Sidebar, chatTitle } from "./view/sidebar.js";
import { TranscriptView } from "./view/transcript.js";
import { runStateWords } from "./words.js";

const DRAW_MS = 40; // at least; a page that is slow to draw is drawn less often
const TICK_MS = 250;
const LIST_MS = 15000;
const TWICE_MS = 600; // two presses within it are one gesture

const $ = (id) => document.getElementById(id);

let conversation = null;
let changedTurns = new Set(); // null: all
let drawTimer = 0;
let drawCost = 0;
let firstEscape = null; // {at, conversation, turnId}

const announcer = new Announcer($("announcer"));
const progress = new ProgressView({
  line: $("progress"), icon: $("progress-icon"), text: $("progress-text"), hint: $("esc-hint"),
  word: $("stop-word"),
});
const transcript = new TranscriptView($("transcript"), $("scroller"), (text) => writeAgain(text), goBack);
const sidebar = new Sidebar($("chats"), $("more-chats"), (error) => {
  if (error.status === 401) askForToken(error.detail);
});

// -- which conversation ----------------------------------------------------------------------

const runInAddress = () => new URLSearchParams(location.hash.slice(1)).get("run");

function open(runId) {
  conversation?.close();
  transcript.clear();
  announcer.clear();
  showConnection("connected");
  $("trouble").hidden = true;
  conversation = new Conversation(runId, {
    changed: (turnIds) => scheduleDraw(turnIds),
    connection: showConnection,
    runs: () => sidebar.refresh(),
    address: () => putRunInAddress(),
    trouble: showTrouble,
  });
  draw();
  transcript.scrollToEnd();
}

function putRunInAddress() {
  const hash = conversation.runId === null ? "" : `#run=${encodeURIComponent(conversation.runId)}`;
  if (location.hash !== hash) history.pushState(null, "", location.pathname + location.search + hash);
  sidebar.refresh();
}

function startNewChat() {
  open(null);
  putRunInAddress();
  showMenu(false);
  $("message").focus();
}

// -- drawing -----------------------------------------------------------------------------------

function scheduleDraw(turnIds) {
  if (turnIds === null) {
    changedTurns = null;
    draw(); // the user did something: it shows at once
    return;
  }
  if (changedTurns !== null) for (const id of turnIds) changedTurns.add(id);
  if (drawTimer === 0) drawTimer = setTimeout(draw, Math.max(DRAW_MS, drawCost * 4));
}

function draw() {
  clearTimeout(drawTimer);
  drawTimer = 0;
  if (conversation === null) return;
  const turns = changedTurns;
  changedTurns = new Set();
  const now = serverNow();
  const started = performance.now();
  progress.update(conversation, now);
  transcript.update(conversation, turns, now);
  announcer.update(conversation);
  drawHead();
  drawCost = performance.now() - started;
}

function drawHead() {
  const { runId, sessionId, state, title } = conversation;
  const isNew = runId === null && title === null;
  const name = isNew ? "New chat" : chatTitle({ metadata: { title }, created_at: beginning() });
  setText($("title"), name);
  document.title = isNew ? "PythonServer" : `${name} · PythonServer`;
  const badge = $("run-state");
  badge.hidden = state === null;
  badge.dataset.state = state ?? "";
  setText(badge, state === null ? "" : runStateWords(state));
  sidebar.update({ runId, sessionId, state, title });
}

function beginning() {
  const { past, chat } = conversation;
  const firstTurn = (past.chats[0] ?? chat).turns.values().next().value;
  return firstTurn?.startedAt ?? Date.now();
}

function showConnection(word) {
  showText($("connection"), word === "lost" ? "The connection was lost, trying again…" : null);
}

function showTrouble(error, what) {
  if (error.status === 401) {
    askForToken(error.detail);
    return;
  }
  setText($("trouble-text"), `${what}: ${error.detail ?? error.message}`);
  $("trouble").hidden = false;
}

// -- what the user does ------------------------------------------------------------------------

function send(event) {
  event?.preventDefault();
  const box = $("message");
  if (box.value.trim() === "") return;
  $("trouble").hidden = true;
  conversation.send(box.value);
  box.value = "";
  transcript.scrollToEnd();
  box.focus();
}

function writeAgain(text) {
  const box = $("message");
  box.value = box.value ? `${box.value}\n${text}` : text;
  box.focus();
}

/** The buttons are gone afterwards: who came by the keyboard goes on at the message box. */
function goBack(way, isByKey) {
  $("trouble").hidden = true;
  conversation.goBack(way);
  transcript.scrollToEnd();
  if (isByKey) $("message").focus();
}

function onMessageKey(event) {
  const isEnter = event.key === "Enter" && !event.shiftKey && !event.isComposing;
  if (isEnter) send(event);
}

/** Esc stops the turn. A second one ends the chat: while that turn still stops, or if the two are one gesture. */
function onEscape(event) {
  if (event.key !== "Escape" || event.repeat || event.isComposing || conversation === null || $("app").hidden) return;
  if (!$("shade").hidden) return void showMenu(false);
  if (isSecondEscape(event)) {
    firstEscape = null;
    conversation.end();
  } else if (conversation.isBusy) {
    firstEscape = { at: event.timeStamp, conversation, turnId: conversation.turn?.id ?? null };
    conversation.stop();
    progress.offerEnd(serverNow());
  }
}

function isSecondEscape(event) {
  if (firstEscape?.conversation !== conversation) return false;
  if (event.timeStamp - firstEscape.at < TWICE_MS) return true;
  const { isBusy, isStopping, turn } = conversation;
  return isBusy && isStopping && [null, turn?.id].includes(firstEscape.turnId);
}

function showMenu(isShown) {
  $("app").classList.toggle("menu-open", isShown);
  $("shade").hidden = !isShown;
  $("menu").setAttribute("aria-expanded", String(isShown));
  if (isShown) $("new-chat").focus();
}

// -- signing in --------------------------------------------------------------------------------

function askForToken(why) {
  conversation?.close();
  conversation = null;
  forgetToken();
  $("app").hidden = true;
  $("sign-in").hidden = false;
  showText($("sign-in-why"), why);
  $("token").focus();
}

function signIn(event) {
  event.preventDefault();
  // The whole address that the server printed is as good as the token in it.
  setToken($("token").value.replace(/^.*token=/, ""));
  $("token").value = "";
  start();
}

function start() {
  $("sign-in").hidden = true;
  $("app").hidden = false;
  open(runInAddress());
  sidebar.refresh();
  $("message").focus();
}

function onAddress() {
  if (takeTokenFromAddress() || conversation === null) {
    if (getToken()) start();
    return;
  }
  showMenu(false);
  if (runInAddress() !== conversation.runId) open(runInAddress());
}

// -- wiring --------------------------------------------------------------------------------------

$("composer").addEventListener("submit", send);
$("message").addEventListener("keydown", onMessageKey);
$("stop").addEventListener("click", () => conversation.stop());
$("new-chat").addEventListener("click", startNewChat);
$("menu").addEventListener("click", () => showMenu($("shade").hidden));
$("shade").addEventListener("click", () => showMenu(false));
$("trouble-close").addEventListener("click", () => ($("trouble").hidden = true));
$("sign-in-form").addEventListener("submit", signIn);
document.addEventListener("keydown", onEscape);
window.addEventListener("hashchange", onAddress);
window.addEventListener("popstate", onAddress);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && conversation !== null) sidebar.refresh();
});
setInterval(() => {
  if (document.hidden || conversation === null) return;
  const now = serverNow();
  if (conversation.isBusy) transcript.tick(now);
  progress.tick(now);
}, TICK_MS);
setInterval(() => {
  if (!document.hidden && conversation !== null) sidebar.refresh();
}, LIST_MS);

takeTokenFromAddress();
if (getToken()) start();
else askForToken(null);
