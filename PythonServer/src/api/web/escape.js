// Esc stops the turn. A second one ends the chat: while that turn still stops, or if the two are one gesture.

const TWICE_MS = 600; // two presses within it are one gesture

/**
 * `on.conversation()` is the one that is shown, or null; `on.isTaken()`: the press was for something else, which has
 * happened; `on.stopped()`: the first press has stopped a turn.
 */
export function onEscape(on) {
  let first = null; // {at, conversation, turnId}
  document.addEventListener("keydown", (event) => {
    const conversation = on.conversation();
    if (event.key !== "Escape" || event.repeat || event.isComposing || conversation === null || on.isTaken()) return;
    if (first?.conversation === conversation && isSecond(event, first)) {
      first = null;
      conversation.end();
    } else if (conversation.isBusy) {
      first = { at: event.timeStamp, conversation, turnId: conversation.turn?.id ?? null };
      conversation.stop();
      on.stopped();
    }
  });
}

function isSecond(event, { at, conversation, turnId }) {
  if (event.timeStamp - at < TWICE_MS) return true;
  const { isBusy, isStopping, turn } = conversation;
  return isBusy && isStopping && [null, turn?.id].includes(turnId);
}
