// The chat page: puts the parts together, and turns what the user does into calls.

import { serverNow } from "./api.js";
import { Conversation } from "./conversation.js";
import { onEscape } from "./escape.js";
import { forgetToken, getToken, setToken, takeTokenFromAddress } from "./token.js";
import { noteSeenTo } from "./remembered.js";
import { Announcer } from "./view/announcer.js";
import { ComposerView } from "./view/composer.js";
import { setText, showText } from "./view/dom.js";
import { HeadView } from "./view/head.js";
import { ProgressView } from "./view/progress.js";
import { Sidebar } from "./view/sidebar.js";
import { TranscriptView } from "./view/transcript.js";
import { TrayView } from "./view/tray.js";

const DRAW_MS = 40; // at least; a page that is slow to draw is drawn less often
const TICK_MS = 250;
const LIST_MS = 15000;

const $ = (id) => document.getElementById(id);

let conversation = null;
let changedTurns = new Set(); // null: all
let drawTimer = 0;
let drawCost = 0;

const head = new HeadView($("title"), $("run-state"));
const announcer = new Announcer($("announcer"));
const progress = new ProgressView({
  line: $("progress"), icon: $("progress-icon"), text: $("progress-text"), hint: $("esc-hint"),
  word: $("stop-word"), show: $("show-question"),
});
const composer = new ComposerView(
  {
    form: $("composer"), box: $("message"), send: $("send"), modes: $("modes"), explained: $("means-explained"),
    keys: $("keys"),
  },
  send,
);
const tray = new TrayView($("tray"), {
  back: (text) => composer.write(text),
  retry: (item) => conversation.retry(item, composer.mode),
  changed: () => scheduleDraw(null),
  left: () => composer.focus(),
});
const transcript = new TranscriptView($("transcript"), $("scroller"), goBack, () => conversation.undoCompaction());
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
    back: takeBack,
    trouble: showTrouble,
  });
  composer.open(runId);
  draw();
  transcript.scrollToEnd();
}

function putRunInAddress() {
  const hash = conversation.runId === null ? "" : `#run=${encodeURIComponent(conversation.runId)}`;
  composer.moveTo(conversation.runId);
  if (location.hash !== hash) history.pushState(null, "", location.pathname + location.search + hash);
  sidebar.refresh();
}

function startNewChat() {
  open(null);
  putRunInAddress();
  showMenu(false);
  composer.focus();
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
  const { isAtEnd } = transcript;
  progress.update(conversation, now);
  tray.update(conversation);
  composer.update(conversation);
  transcript.update(conversation, turns, now);
  if (isAtEnd) transcript.scrollToEnd();
  announcer.update(conversation);
  head.update(conversation);
  sidebar.update(conversation);
  drawCost = performance.now() - started;
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

function send() {
  const text = composer.take();
  if (text === null) return;
  $("trouble").hidden = true;
  conversation.send(text, composer.mode);
  transcript.scrollToEnd();
}

/** A message came back: into the box if that is empty; else it stays in the tray. */
function takeBack(message) {
  if (composer.putBack(message.text)) noteSeenTo(message.id);
}

function showQuestion() {
  const card = document.querySelector('.question[data-state="open"]');
  card?.scrollIntoView({ block: "center" });
  card?.querySelector("textarea, button")?.focus({ preventScroll: true });
}

/** The buttons are gone afterwards: who came by the keyboard goes on at the message box. */
function goBack(way, isByKey) {
  $("trouble").hidden = true;
  conversation.goBack(way);
  transcript.scrollToEnd();
  if (isByKey) composer.focus();
}

/** Whether it was open. */
function closeMenu() {
  const wasOpen = !$("shade").hidden;
  if (wasOpen) showMenu(false);
  return wasOpen;
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
  composer.focus();
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

$("show-question").addEventListener("click", showQuestion);
$("stop").addEventListener("click", () => conversation.stop());
$("new-chat").addEventListener("click", startNewChat);
$("menu").addEventListener("click", () => showMenu($("shade").hidden));
$("shade").addEventListener("click", () => showMenu(false));
$("trouble-close").addEventListener("click", () => ($("trouble").hidden = true));
$("sign-in-form").addEventListener("submit", signIn);
onEscape({
  conversation: () => ($("app").hidden ? null : conversation),
  isTaken: closeMenu,
  stopped: () => progress.offerEnd(serverNow()),
});
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
