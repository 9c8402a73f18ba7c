// The messages of a run that wait, in the order in which they will be sent, and those that will not be.

export const isWaiting = ({ fate }) => fate === "queued" || fate === "held";

/** A message waits. With `interrupt` it goes before all others. */
export function queueMessage(chat, event, isStopping) {
  const { message_id: id, text, mode = "queue", seq } = event;
  if (isStopping || mode === "interrupt") releaseHeld(chat); // the user has spoken since the stop
  const message = { id, text, mode, seq, fate: "queued" };
  chat.messages = new Map(mode === "interrupt" ? [[id, message], ...chat.messages] : [...chat.messages, [id, message]]);
}

/** A message has gone into a turn, or started one. */
export function deliverMessage(chat, { message_id: id }) {
  const wasHeld = chat.messages.get(id)?.fate === "held";
  chat.messages.delete(id);
  if (wasHeld) releaseHeld(chat);
}

/** A message will not be worked on. */
export function settleMessage(chat, { message_id: id, text, seq }, fate) {
  chat.messages.set(id, { id, mode: "queue", seq, ...chat.messages.get(id), text, fate });
}

export function moveMessage(chat, { message_id: id, position }) {
  const moved = chat.messages.get(id);
  if (moved === undefined) return;
  const all = [...chat.messages.values()];
  const waiting = all.filter((message) => isWaiting(message) && message !== moved);
  waiting.splice(position, 0, moved);
  const order = [...all.filter((message) => !isWaiting(message)), ...waiting];
  chat.messages = new Map(order.map((message) => [message.id, message]));
}

/** A stop came. `kept` are the ids that it left waiting; undefined: all. */
export function holdMessages(chat, kept) {
  for (const message of chat.messages.values()) {
    if (message.fate === "queued" && (kept?.includes(message.id) ?? true)) message.fate = "held";
  }
}

export function releaseHeld(chat) {
  for (const message of chat.messages.values()) if (message.fate === "held") message.fate = "queued";
}
