// A goal's rounds, as the server counts them: text, then the calls that followed it. A message that goes into a turn at
// work names the round that the model makes with it, so it stands where the model met it, live and after a reload.

export const newRounds = () => ({ count: 0, hasCalls: false, hasResult: false });

/** Before text is added. */
export function beginText(goal) {
  if (goal.rounds.count === 0 || goal.rounds.hasCalls || isCut(goal)) beginRound(goal);
}

/** Before a call is added. */
export function beginCall(goal) {
  if (goal.rounds.count === 0 || goal.rounds.hasResult || isCut(goal)) beginRound(goal);
  goal.rounds.hasCalls = true;
}

/** A call of this round has its result. */
export function noteResult(goal) {
  goal.rounds.hasResult = true;
}

/** The user's message goes into the goal. Until the model has answered it, it stands behind everything. */
export function tellGoal(goal, message, round) {
  const before = [...goal.parts, ...goal.upcoming].at(-1);
  const isRedirect = message.mode === "redirect";
  goal.upcoming.push({ kind: "told", ...message, round, cutsText: isRedirect && before?.kind === "text" });
}

/** The goal is over, or its turn. Its model has read what was told, unless it has come to its own end before. */
export function closeRounds(goal) {
  if (goal.status !== "COMPLETED") goal.parts.push(...goal.upcoming);
  goal.upcoming = [];
}

const isCut = (goal) => goal.upcoming.some(({ mode, round }) => mode === "redirect" && round <= goal.rounds.count);

function beginRound(goal) {
  const { count } = goal.rounds;
  goal.parts.push(...goal.upcoming.filter(({ round }) => round <= count));
  goal.upcoming = goal.upcoming.filter(({ round }) => round > count);
  goal.rounds = { ...newRounds(), count: count + 1 };
}
