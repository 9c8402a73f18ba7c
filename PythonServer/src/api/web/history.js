// What of a long history the model is told as a summary. `chats` are the runs of a session, oldest first.

/** Exchanges that are always told as they are: the first, and the last ones. */
const TOLD_AS_THEY_ARE = 3;

/** Whether there is something, or something more, to leave out. */
export function mayShorten(chats) {
  const turns = turnsOf(chats);
  const last = turns.findLastIndex(({ compaction }) => compaction !== null && isInForce(chats, compaction));
  const said = turns.filter((turn) => !turn.isCompaction && turn.leftOut === null);
  const since = turns.slice(last + 1).filter((turn) => said.includes(turn)).length;
  const handedIn = (chats[0]?.handedIn ?? []).filter(({ role }) => role === "user").length;
  return handedIn + said.length > TOLD_AS_THEY_ARE && (last < 0 || since > 0);
}

/** The id of the newest summary that the model is told; null if it is told everything. */
export function compactionInForce(chats) {
  const all = turnsOf(chats).map(({ compaction }) => compaction);
  return all.filter((each) => each !== null && isInForce(chats, each)).sort((a, b) => a.last - b.last).at(-1)?.id ?? null;
}

const turnsOf = (chats) => chats.flatMap((chat) => [...chat.turns.values()]);
const isInForce = (chats, { id }) => id !== null && !chats.some((chat) => chat.undone.has(id));
