// How a turn ended: the mark of a stop and its receipt, or a failure, and what the model calls used.

import { renderMarkdown } from "../markdown.js";
import { failureWords } from "../tool_words.js";
import { causeExplained, causeWords, usageWords } from "../words.js";
import { h, icon } from "./dom.js";
import { receiptView } from "./receipt.js";

/** The nodes that go below what the goals said. */
export function endOf(turn) {
  const hasParts = [...turn.goals.values()].some((goal) => goal.parts.length > 0);
  if (turn.state === "cancelled") return stopped(turn, hasParts);
  if (turn.state === "failed") return [failure(turn)];
  return hasParts ? [] : turn.messages.filter(isAnswer).map(said);
}

/** The quiet line; null if no model was asked. */
export function usageOf(turn) {
  const words = usageWords(turn.usage);
  return words === null ? null : h("p", { class: "usage muted", title: "What the turn's model calls used" }, words);
}

function failure(turn) {
  const detail = turn.error === null ? "It is not known why." : failureWords(turn.error);
  return h("div", { class: "failure", role: "alert" }, icon("failed"),
    h("div", {}, h("strong", {}, "This turn failed"), h("p", {}, detail)));
}

function stopped(turn, hasParts) {
  const why = [causeExplained(turn.cause), turn.reason ? `“${turn.reason}”` : null].filter(Boolean).join(" ");
  return [
    h("p", { class: "stopped" },
      h("span", { class: "chip" }, icon("stopped"), h("span", {}, causeWords(turn.cause))),
      h("span", { class: "muted" }, [hasParts ? "" : "Nothing had been said yet.", why].filter(Boolean).join(" "))),
    turn.error ? h("p", { class: "goal-error" }, failureWords(turn.error)) : null,
    receiptView(turn),
  ].filter(Boolean);
}

const isAnswer = (message) => message.role === "assistant" && message.content.trim() !== "";

function said(message) {
  const text = h("div", { class: "text" });
  text.append(renderMarkdown(message.content));
  return text;
}
