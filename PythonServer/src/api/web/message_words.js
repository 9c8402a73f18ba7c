// Messages to a turn at work, in words: what each mode means, how a message waits, and what a stop did with it.

/** In the order in which they are offered. `send` says what a click sends; what `isCutting` ends what runs now. */
export const MODES = {
  queue: { word: "After this", send: "Send", explained: "Waits until this turn is over, then it is the next message." },
  steer: {
    word: "Add to it", send: "Add to it", explained: "The model reads it at its next step; what runs now goes on.",
  },
  redirect: {
    word: "Correct it", send: "Correct it", isCutting: true,
    explained: "Interrupts the model with your correction; tools finish first.",
  },
  interrupt: {
    word: "Instead", send: "Stop and send", isCutting: true,
    explained: "Stops this turn, and starts the next one with your message.",
  },
};

/** What a message means if the user says nothing else. */
export const USUAL_MODE = "queue";

const QUEUED = {
  queue: "waiting: it is sent when this turn is over",
  steer: "waiting for the model's next step, else for the next turn",
  redirect: "waiting: it goes in as soon as it can",
  interrupt: "waiting: it is next when this turn has stopped",
};

const FATES = {
  held: "held since the stop: it goes before your next message",
  returned: "not sent: handed back to you",
  withdrawn: "taken back",
};

const GOES_IN = new Set(["steer", "redirect"]);

/** How a message waits, or why it does not any more. `isParked`: there is no turn that it could wait for. */
export function fateWords({ fate, mode }, isParked = false) {
  if (fate === "queued" && isParked) return "waiting: it goes before your next message";
  return fate === "queued" ? QUEUED[mode] ?? QUEUED.queue : FATES[fate];
}

/** What a message in a turn at work did to it. */
export const toldWords = ({ mode }) => (mode === "redirect" ? "your correction" : "added while it worked");

/** The mode as a mark of a message that waits to go in, or to take the turn's place; else null. */
export const modeMark = ({ fate, mode }) =>
  fate === "queued" && (GOES_IN.has(mode) || mode === "interrupt") ? MODES[mode].word : null;

/** What a stop did with the messages that waited; null if there were none. */
export function inboxWords(inbox) {
  if (inbox === null) return null;
  const parts = [
    count(inbox.kept, "kept"), count(inbox.returned, "handed back to you"), count(inbox.withdrawn, "dropped"),
  ].filter((words) => words !== null);
  return parts.length === 0 ? null : `${parts.join(", ")}.`;
}

function count(ids, fate) {
  if (!ids?.length) return null;
  return ids.length === 1 ? `1 waiting message was ${fate}` : `${ids.length} waiting messages were ${fate}`;
}
