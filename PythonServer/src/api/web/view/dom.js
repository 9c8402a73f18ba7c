// Building nodes. Text only ever goes in as text.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  waiting: ["M8 3.2a4.8 4.8 0 1 0 0 9.6a4.8 4.8 0 1 0 0-9.6"],
  working: ["M8 2.6a5.4 5.4 0 1 1-5.4 5.4"],
  paused: ["M8 2.8a5.2 5.2 0 1 0 0 10.4a5.2 5.2 0 1 0 0-10.4", "M8 5.2V8.2L10 9.6"],
  done: ["M3.2 8.6L6.6 12L12.8 4.8"],
  failed: ["M4 4L12 12M12 4L4 12"],
  stopped: ["M4.2 4.2H11.8V11.8H4.2Z"],
  close: ["M4.6 4.6L11.4 11.4M11.4 4.6L4.6 11.4"],
  cut: ["M1.4 8H4.6M11.4 8H14.6M6.2 12L9.8 4"],
  skipped: ["M8 2.8a5.2 5.2 0 1 0 0 10.4a5.2 5.2 0 1 0 0-10.4", "M4.4 4.4L11.6 11.6"],
};

/** An element: `h("p", {class: "note", onclick: f}, "text", node, …)`; null children are left out. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** An icon; the word beside it says the same, so it is hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  for (const line of ICONS[name] ?? []) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", line);
    svg.append(path);
  }
  return svg;
}

/** Change a text only if it differs: what is selected stays selected, and nothing is laid out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show or hide a node with a text; an empty text hides it. */
export function showText(node, text) {
  node.hidden = !text;
  setText(node, text ?? "");
}
