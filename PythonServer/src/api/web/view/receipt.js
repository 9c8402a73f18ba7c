// What a stop found, and what became of it: one line, and the whole table on demand.

import { goalOf } from "../goal_state.js";
import { kindWords, outcomeWords, receiptSummary } from "../words.js";
import { h } from "./dom.js";

export function receiptView(turn) {
  const summary = h("summary", {}, h("span", { class: "receipt-word" }, "Receipt"), " ",
    h("span", { class: "receipt-summary" }, receiptSummary(turn.receipt)));
  if (turn.receipt.length === 0) return h("p", { class: "receipt muted" }, ...summary.childNodes);
  const view = h("details", { class: "receipt" }, summary, h("div", { class: "table-frame" }, table(turn)));
  view.addEventListener("toggle", () => view.open && view.scrollIntoView({ block: "nearest" }));
  return view;
}

// The roles are given because the narrow layout, which shows each row as a block, takes the native ones away.
function table(turn) {
  const heads = ["What", "Goal", "Outcome", "How", "After"];
  return h("table", { role: "table" },
    h("caption", { class: "sr-only" }, "What the stop found, and what became of it"),
    h("thead", { role: "rowgroup" },
      h("tr", { role: "row" }, ...heads.map((name) => h("th", { scope: "col", role: "columnheader" }, name)))),
    h("tbody", { role: "rowgroup" }, ...turn.receipt.map((item) => row(item, turn))));
}

function row(item, turn) {
  const kind = kindWords(item.kind);
  const goal = goalOf(turn, item.goal_id)?.title ?? item.goal_id ?? "planning";
  const how = item.detail ? `${item.how ?? ""} (${item.detail})` : item.how ?? "";
  const cell = (name, text) => h("td", { class: name, role: "cell" }, text);
  return h("tr", { "data-outcome": item.outcome, title: item.id, role: "row" },
    cell("what", kind[0].toUpperCase() + kind.slice(1)),
    cell("of-goal", goal),
    cell("outcome", outcomeWords(item.outcome)),
    cell("how", how),
    cell("number", item.took_ms == null ? "–" : `${item.took_ms} ms`));
}
