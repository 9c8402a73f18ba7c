// What the page asks of the server for one run, and what it says when it was refused.

import { Answers } from "./answers.js";
import { GoingBack } from "./going_back.js";
import { Inbox } from "./inbox.js";
import { Stopper } from "./stopper.js";

const NOT_DONE = {
  resume: "The turn was not resumed",
  regenerate: "The message was not asked again",
  rollback: "The turn was not taken out",
  compact: "The history was not shortened",
  undo: "The shortening was not taken back",
};

/**
 * `{stopper, goingBack, inbox, answers}`. `on.changed()`, `on.answered()` when events may be there,
 * `on.started(pending)` when a way back has begun a turn, `on.trouble(error, what)`.
 */
export function newActions(on) {
  const { changed, answered, trouble } = on;
  return {
    stopper: new Stopper({
      changed, answered,
      refused: (error) => trouble(error, "The stop was refused"),
      unreachable: (error) => trouble(error, "The stop has not reached the server yet, trying again"),
    }),
    goingBack: new GoingBack({
      changed,
      answered: on.started,
      refused: (error, way) => {
        changed();
        trouble(error, NOT_DONE[way]);
      },
    }),
    inbox: new Inbox({ changed, answered, refused: trouble }),
    answers: new Answers({ changed, answered }),
  };
}
