// How a turn ended: the mark of a stop and its receipt, or a failure, and what the model calls used.

import { renderMarkdown } from "../markdown.js";
import { failureWords } from "../tool_words.js";
import { inboxWords } from "../message_words.js";
import { causeExplained, causeWords, reasonWords, usageWords } from "../words.js";
import { h, icon, setText } from "./dom.js";
import { receiptView } from "./receipt.js";
import { toldView } from "./told.js";

/** The nodes that go below what the goals said. */
export function endOf(turn) {
  const hasParts = [...turn.goals.values()].some((goal) => goal.parts.length > 0);
  if (turn.state === "cancelled") return stopped(turn, hasParts);
  if (turn.state === "failed") return [failure(turn)];
  return hasParts ? [] : turn.messages.filter(isSaid).map(said);
}

/** The line about the messages that waited, among the nodes of `endOf`, as it stands now. */
export function tellFate(end, turn) {
  const line = end.querySelector(".inbox-fate");
  if (line !== null) setText(line, inboxWords(turn.inbox));
}

/** The quiet line; null if no model was asked. */
export function usageOf(turn) {
  const words = usageWords(turn.usage);
  return words === null ? null : h("p", { class: "usage muted", title: "What the turn's model calls used" }, words);
}

function failure(turn) {
  const detail = turn.error === null ? "It is not known why." : failureWords(turn.error);
  const what = turn.isCompaction ? "The history was not shortened" : "This turn failed";
  return h("div", { class: "failure", role: "alert" }, icon("failed"),
    h("div", {}, h("strong", {}, what), h("p", {}, detail)));
}

function stopped(turn, hasParts) {
  const why = [causeExplained(turn.cause), reasonWords(turn)].filter(Boolean).join(" ");
  const nothing = turn.isCompaction ? "The history was not shortened." : "Nothing had been said yet.";
  const waiting = inboxWords(turn.inbox);
  return [
    h("p", { class: "stopped" },
      h("span", { class: "chip" }, icon("stopped"), h("span", {}, causeWords(turn.cause))),
      h("span", { class: "muted" }, [hasParts ? "" : nothing, why].filter(Boolean).join(" "))),
    turn.error ? h("p", { class: "goal-error" }, failureWords(turn.error)) : null,
    receiptView(turn),
    waiting === null ? null : h("p", { class: "inbox-fate muted" }, waiting),
  ].filter(Boolean);
}

/** Not what stands in the history because roles have to alternate. */
const STANDS_IN = /^\[(not answered yet|stopped\b.* before any text)\]$/;
const isSaid = ({ role, content }) => role !== "tool" && content.trim() !== "" && !STANDS_IN.test(content);

function said(message) {
  if (message.role === "user") return toldView({ text: message.content, mode: "steer", cutsText: false });
  const text = h("div", { class: "text" });
  text.append(renderMarkdown(message.content));
  return text;
}
