// The line above the message box: what is going on, and the STOP button.

import { waitingWords } from "../question_words.js";
import { hasText, openCalls } from "../parts.js";
import { runningWords } from "../tool_words.js";
import { FINAL_GOAL, WAYS_BACK, duration } from "../words.js";
import { icon, setText } from "./dom.js";
import { Room } from "./room.js";

export class ProgressView {
  #nodes;
  #room;
  #conversation = null;
  #isEndOffered = false;
  #shownIcon = "";

  /** `nodes` are the elements `line, icon, text, hint, word, show`; `show` leads to the question that waits. */
  constructor(nodes) {
    this.#nodes = nodes;
    this.#room = new Room(nodes.line);
  }

  /** Another conversation. */
  clear() {
    this.#room.close();
  }

  update(conversation, now) {
    const { line, word, hint, show } = this.#nodes;
    const isAsked = conversation.questions.length > 0 && !conversation.isStopping;
    const isStopping = conversation.isBusy && conversation.isStopping;
    this.#isEndOffered &&= isStopping && conversation === this.#conversation && !conversation.stopper.isEnding;
    this.#conversation = conversation;
    if (conversation.isBusy) this.#room.fill();
    else this.#room.leave();
    line.classList.toggle("is-stopping", isStopping);
    // Never disabled: it keeps the focus, and a further press hurries up a stop that has to be sent again.
    setText(word, isStopping ? "Stopping…" : "Stop");
    const offer = this.#isEndOffered ? "Esc again ends the chat" : "";
    setText(hint, isStopping ? offer : "Esc stops, twice ends the chat");
    hint.classList.toggle("is-urgent", this.#isEndOffered);
    show.hidden = !isAsked;
    line.classList.toggle("is-asked", isAsked);
    this.#showIcon(isStopping ? "stopped" : isAsked ? "paused" : "working");
    this.tick(now);
  }

  tick(now) {
    const conversation = this.#conversation;
    if (!conversation?.isBusy) return;
    setText(this.#nodes.text, progressText(conversation, now));
  }

  /** After the first Esc: while the turn stops, a second one ends the chat. */
  offerEnd(now) {
    this.#isEndOffered = true;
    this.update(this.#conversation, now);
  }

  #showIcon(name) {
    if (this.#shownIcon === name) return;
    this.#shownIcon = name;
    this.#nodes.icon.replaceChildren(icon(name));
  }
}

function progressText({ turn, isStopping, stopper, goingBack, questions }, now) {
  if (isStopping) return stopper.isEnding ? "Ending the chat" : "Stopping the turn";
  if (questions.length > 0) return waitingWords(questions.length);
  if (turn === null) return goingBack.isStarting ? WAYS_BACK[goingBack.pending.way].doing : "Sending";
  const time = duration(now - turn.startedAt);
  const leaves = [...turn.goals.values()].filter((goal) => goal.goals.length === 0);
  if (turn.isCompaction) return `Shortening the history · ${time}`;
  if (leaves.length === 0) return `Planning · ${time}`;
  if (leaves.length === 1) return `${goalWord(leaves[0])} · ${time}`;
  return `${leaves.filter((goal) => FINAL_GOAL.has(goal.status)).length} of ${leaves.length} goals · ${time}`;
}

function goalWord(goal) {
  if (goal.retry) return "Retrying";
  const [call] = openCalls(goal);
  if (call !== undefined) return runningWords(call);
  return goal.thinking && !hasText(goal) ? "Thinking" : "Answering";
}
