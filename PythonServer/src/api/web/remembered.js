// What this browser remembers, so that nothing that was typed is lost by a reload: drafts, messages that were not sent,
// and which messages that came back were seen to.

const KEY = "pythonserver";
const SEEN_TO = 300; // ids that are kept

const draftKey = (of) => `${KEY}.draft.${of}`;
const unsentKey = (runId) => `${KEY}.unsent.${runId ?? NEW}`;

/** Of a chat without a run yet. */
export const NEW = "new";

/** `of` is the id of a run or of a question, or `NEW`. */
export const getDraft = (of) => sessionStorage.getItem(draftKey(of)) ?? "";
export const keepDraft = (of, text) => keep(sessionStorage, draftKey(of), text);

/** The messages of a run that the server has not accepted yet. */
export const getUnsent = (runId) => JSON.parse(sessionStorage.getItem(unsentKey(runId)) ?? "[]");
export const keepUnsent = (runId, items) =>
  keep(sessionStorage, unsentKey(runId), items.length === 0 ? "" : JSON.stringify(items));

/** Whether a message that came back is in the message box again, or was let go of. */
export const isSeenTo = (messageId) => seenTo().includes(messageId);

export function noteSeenTo(messageId) {
  keepSeenTo([...seenTo(), messageId]);
}

export function forgetSeenTo(messageId) {
  keepSeenTo(seenTo().filter((id) => id !== messageId));
}

function seenTo() {
  return JSON.parse(localStorage.getItem(`${KEY}.seen`) ?? "[]");
}

function keepSeenTo(ids) {
  keep(localStorage, `${KEY}.seen`, JSON.stringify(ids.slice(-SEEN_TO)));
}

/** What is too long for the browser is not remembered. */
function keep(storage, key, text) {
  storage.removeItem(key);
  try {
    if (text !== "") storage.setItem(key, text);
  } catch (error) {
    if (error.name !== "QuotaExceededError") throw error;
  }
}
