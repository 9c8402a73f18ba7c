// Why the server refused something. What it says is meant for programs where it names the API: here it names buttons.

import { MODES } from "./message_words.js";
import { WAYS_BACK } from "./words.js";

const REFUSALS = {
  redirect_limit: "the model was interrupted several times without coming to an end: "
    + `choose “${MODES.steer.word}”, or stop the turn`,
  not_interactive: "this chat takes no further messages",
  run_is_busy: "a turn is at work: stop it first, or wait for its end",
  run_is_over: "this chat has ended: your next message takes the conversation up again",
  session_is_busy: "the conversation goes on in another chat: write there, or end that first",
  turn_not_stopped: `the turn had come to its end: use “${WAYS_BACK.regenerate.word}”`,
  queue_full: "too many messages are waiting already: take one back, or wait",
};

/** `error` is an ApiError, or any other. */
export const refusalWords = (error) => REFUSALS[error.code] ?? error.detail ?? error.message;
