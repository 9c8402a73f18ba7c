// The conversation from elsewhere that a run was started with: folded away, above the first turn.

import { renderMarkdown } from "../markdown.js";
import { h } from "./dom.js";

const ROLES = { user: "User", assistant: "Assistant", tool: "Tool" };

export function handedInView(messages) {
  const count = messages.length === 1 ? "1 earlier message was" : `${messages.length.toLocaleString("en")} earlier messages were`;
  const view = h("details", { class: "handed-in" }, h("summary", {}, `${count} handed in`));
  // Thousands may have been: they are only built when somebody looks.
  view.addEventListener("toggle", () => view.append(...messages.map(handedIn)), { once: true });
  return view;
}

function handedIn({ role, content, tool_calls: calls = [] }) {
  return h("div", { class: "handed-in-message" }, h("p", { class: "muted" }, ROLES[role] ?? role),
    role === "tool" ? h("pre", {}, content) : text(content),
    ...calls.map((call) => h("pre", {}, `${call.function.name} ${call.function.arguments}`)));
}

function text(content) {
  const node = h("div", { class: "text" });
  node.append(renderMarkdown(content));
  return node;
}
