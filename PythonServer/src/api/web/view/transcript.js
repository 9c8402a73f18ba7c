// The conversation: the turns of this run and of those before it, a message on its way, and how the run ended.

import { PartStops } from "../part_stops.js";
import { causeWords } from "../words.js";
import { WaysBackView } from "./ways_back.js";
import { h } from "./dom.js";
import { TurnView } from "./turn.js";

const NEAR_END_PX = 80;

export class TranscriptView {
  #turns = new Map();
  #list = h("div", { class: "turns" });
  #waiting = h("div", { class: "waiting" });
  #end = h("div", {});
  #welcome = h("div", { class: "welcome" }, h("h2", {}, "What should be done?"),
    h("p", { class: "muted" }, "A message becomes a plan of goals that are worked on in parallel. "
      + "Stop ends all of it at once, and says what it found."));
  #scroller;
  #onUndo;
  #waysBack;

  /** `onBack(way, isByKey)`: the user wants to go back; `onUndo()`: to have the whole history told to the model again. */
  constructor(node, scroller, onBack, onUndo) {
    this.#scroller = scroller;
    this.#onUndo = onUndo;
    this.#waysBack = new WaysBackView(onBack);
    node.append(this.#welcome, this.#list, this.#waiting, this.#end);
  }

  /** Show another conversation. */
  clear() {
    this.#turns.clear();
    this.#list.replaceChildren();
  }

  /** `turnIds` are the turns that changed; null means any. */
  update(conversation, turnIds, now) {
    const { chat, chats } = conversation;
    this.#showTurns(chats.flatMap((each) => [...each.turns.values()]), conversation, turnIds);
    this.#showWaysBack(conversation.back);
    this.#showCompactions(conversation);
    this.#showSending(conversation);
    this.#showEnd(chat);
    this.#welcome.hidden = conversation.runId !== null || conversation.outbox.items.length > 0;
    this.tick(now);
  }

  tick(now) {
    for (const view of this.#turns.values()) view.tick(now);
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  scrollToEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #showTurns(turns, conversation, turnIds) {
    const { chat, isStopping } = conversation;
    const ids = new Set(turns.map((turn) => turn.id));
    for (const id of this.#turns.keys()) if (!ids.has(id)) this.#drop(id);
    let previous = null;
    for (const turn of turns) {
      const known = this.#turns.get(turn.id);
      const view = known ?? this.#add(turn, previous);
      const isChanged = known === undefined || turnIds === null || turnIds.has(turn.id);
      if (isChanged) view.update(turn, isStopping && chat.turns.has(turn.id), new PartStops(conversation, turn.id));
      previous = view;
    }
  }

  /** At the newest turn, and nowhere else. */
  #showWaysBack(back) {
    this.#waysBack.update(back);
    if (back.ways.length === 0) this.#waysBack.node.remove();
    else this.#turns.get(back.turnId).offer(this.#waysBack.node);
  }

  /** Earlier turns may come later: each goes behind its `previous`. */
  #add(turn, previous) {
    const view = new TurnView(turn, this.#onUndo);
    this.#turns.set(turn.id, view);
    if (previous === null) this.#list.prepend(view.node);
    else previous.node.after(view.node);
    return view;
  }

  #drop(id) {
    this.#turns.get(id).node.remove();
    this.#turns.delete(id);
  }

  /** The newest one that is in force can be taken back while the run is parked. */
  #showCompactions({ chats, back, compactionId }) {
    for (const turn of chats.flatMap((each) => [...each.turns.values()])) {
      const id = turn.compaction?.id ?? null;
      const isOffered = id !== null && id === compactionId && back.ways.length > 0;
      const offer = { isOffered, isPending: back.pending === "undo" };
      this.#turns.get(turn.id).updateCompaction(id !== null && chats.some((each) => each.undone.has(id)), offer);
    }
  }

  /** What is about to start a turn; what waits behind one stands above the message box. */
  #showSending({ turn, outbox }) {
    const items = turn === null ? outbox.unconfirmed().filter((item) => item.error === null) : [];
    this.#waiting.replaceChildren(...items.map(sendingMessage));
  }

  #showEnd(chat) {
    if (chat.end === null) return this.#end.replaceChildren();
    const { state, cause, error, reason } = chat.end;
    const how = { completed: "This run is complete", failed: "This run failed", cancelled: "This run has ended" }[state];
    const why = [cause ? causeWords(cause) : null, error, reason ? `“${reason}”` : null].filter(Boolean).join(", ");
    const text = `${how}${why ? ` (${why})` : ""}. Your next message takes the conversation up again.`;
    return this.#end.replaceChildren(h("p", { class: "run-end" }, text));
  }
}

function sendingMessage({ text, isStopWanted }) {
  return h("div", { class: "user pending", "data-fate": "sending" },
    h("div", { class: "bubble" }, text),
    h("p", { class: "fate" }, h("span", {}, isStopWanted ? "stopping…" : "sending…")));
}
