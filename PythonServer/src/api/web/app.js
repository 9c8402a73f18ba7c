// The chat page: puts the parts together, and turns what the user does into calls.

import { serverNow } from "./api.js";
import { Conversation } from "./conversation.js";
import { Drawing } from "./drawing.js";
import { onEscape } from "./escape.js";
import { refusalWords } from "./refusal_words.js";
import { noteSeenTo } from "./remembered.js";
import { guardSameSpot } from "./same_spot.js";
import { forgetToken, getToken, takeTokenFromAddress } from "./token.js";
import { Announcer } from "./view/announcer.js";
import { ComposerView } from "./view/composer.js";
import { setText, showText } from "./view/dom.js";
import { HeadView } from "./view/head.js";
import { Menu } from "./view/menu.js";
import { ProgressView } from "./view/progress.js";
import { Sidebar } from "./view/sidebar.js";
import { SignIn } from "./view/sign_in.js";
import { TranscriptView } from "./view/transcript.js";
import { TrayView } from "./view/tray.js";

const TICK_MS = 250;
const LIST_MS = 15000;

const $ = (id) => document.getElementById(id);

let conversation = null;

const drawing = new Drawing(draw);
const head = new HeadView($("title"), $("run-state"));
const announcer = new Announcer($("announcer"));
const progress = new ProgressView({
  line: $("progress"), icon: $("progress-icon"), text: $("progress-text"), hint: $("esc-hint"),
  word: $("stop-word"), show: $("show-question"),
});
const composer = new ComposerView(
  {
    form: $("composer"), box: $("message"), send: $("send"), means: $("means"), modes: $("modes"),
    explained: $("means-explained"),
  },
  send,
);
const tray = new TrayView($("tray"), {
  back: (text) => composer.write(text),
  retry: (item) => conversation.retry(item, composer.useMode()),
  changed: () => drawing.ask(null),
  left: () => composer.focus(),
});
const transcript = new TranscriptView($("transcript"), $("scroller"), goBack, () => conversation.undoCompaction());
const sidebar = new Sidebar($("chats"), $("more-chats"), (error) => {
  if (error.status === 401) askForToken(error.detail);
});
const menu = new Menu({ app: $("app"), button: $("menu"), shade: $("shade"), first: $("new-chat") });
const signIn = new SignIn(
  { section: $("sign-in"), form: $("sign-in-form"), token: $("token"), why: $("sign-in-why"), app: $("app") },
  start,
);

// -- which conversation ----------------------------------------------------------------------

const runInAddress = () => new URLSearchParams(location.hash.slice(1)).get("run");

function open(runId) {
  conversation?.close();
  transcript.clear();
  announcer.clear();
  progress.clear();
  showConnection("connected");
  $("trouble").hidden = true;
  conversation = new Conversation(runId, {
    changed: (turnIds) => drawing.ask(turnIds),
    connection: showConnection,
    runs: () => sidebar.refresh(),
    address: () => putRunInAddress(),
    back: takeBack,
    trouble: showTrouble,
  });
  composer.open(runId);
  drawing.now();
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
  menu.close();
  composer.focus();
}

// -- drawing -----------------------------------------------------------------------------------

function draw(turnIds) {
  if (conversation === null) return;
  const now = serverNow();
  const { isAtEnd } = transcript;
  progress.update(conversation, now);
  tray.update(conversation);
  composer.update(conversation);
  transcript.update(conversation, turnIds, now);
  if (isAtEnd) transcript.scrollToEnd();
  announcer.update(conversation);
  head.update(conversation);
  sidebar.update(conversation);
}

function showConnection(word) {
  showText($("connection"), word === "lost" ? "The connection was lost, trying again…" : null);
}

function showTrouble(error, what) {
  if (error.status === 401) {
    askForToken(error.detail);
    return;
  }
  setText($("trouble-text"), `${what}: ${refusalWords(error)}`);
  $("trouble").hidden = false;
}

// -- what the user does ------------------------------------------------------------------------

function send() {
  const text = composer.take();
  if (text === null) return;
  $("trouble").hidden = true;
  conversation.send(text, composer.useMode());
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

// -- signing in --------------------------------------------------------------------------------

function askForToken(why) {
  conversation?.close();
  conversation = null;
  forgetToken();
  signIn.ask(why);
}

function start() {
  signIn.close();
  open(runInAddress());
  sidebar.refresh();
  composer.focus();
}

function onAddress() {
  if (takeTokenFromAddress() || conversation === null) {
    if (getToken()) start();
    return;
  }
  menu.close();
  if (runInAddress() !== conversation.runId) open(runInAddress());
}

// -- wiring --------------------------------------------------------------------------------------

$("show-question").addEventListener("click", showQuestion);
$("stop").addEventListener("click", () => conversation.stop());
$("new-chat").addEventListener("click", startNewChat);
$("trouble-close").addEventListener("click", () => ($("trouble").hidden = true));
guardSameSpot(document);
onEscape({
  conversation: () => ($("app").hidden ? null : conversation),
  isTaken: () => menu.close(),
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
