// What this browser remembers, so that nothing that was typed is lost by a reload: drafts, what a message is to mean,
// and which messages that came back were seen to.

const KEY = "pythonserver";
const SEEN_TO = 300; // ids that are kept

const draftKey = (of) => `${KEY}.draft.${of}`;

/** `of` is the id of a run or of a question; a chat without a run yet is `new`. */
export const getDraft = (of) => sessionStorage.getItem(draftKey(of)) ?? "";

export function keepDraft(of, text) {
  if (text === "") sessionStorage.removeItem(draftKey(of));
  else sessionStorage.setItem(draftKey(of), text);
}

export const getMode = () => localStorage.getItem(`${KEY}.mode`);
export const keepMode = (mode) => localStorage.setItem(`${KEY}.mode`, mode);

/** Whether a message that came back is in the message box again, or was let go of. */
export const isSeenTo = (messageId) => seenTo().includes(messageId);

export function noteSeenTo(messageId) {
  localStorage.setItem(`${KEY}.seen`, JSON.stringify([...seenTo(), messageId].slice(-SEEN_TO)));
}

function seenTo() {
  return JSON.parse(localStorage.getItem(`${KEY}.seen`) ?? "[]");
}
