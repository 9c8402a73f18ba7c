// Who may keep an event stream open. A browser has six HTTP/1.1 connections a host for all of its tabs: if streams
// take them all, no other request gets through, and so no stop. Three tabs stream; any others take turns at one
// connection to catch up; two connections are always free.

const STREAMING_TABS = 3;
const locks = navigator.locks; // absent where the page comes over plain HTTP from another machine

/** A place for a stream, as a function that gives it back; null if there is none now. */
export async function takeSlot() {
  if (!locks) return () => {};
  for (let number = 0; number < STREAMING_TABS; number += 1) {
    const release = await tryLock(`pythonserver.stream.${number}`);
    if (release) return release;
  }
  return null;
}

function tryLock(name) {
  return new Promise((answer) => {
    locks.request(name, { ifAvailable: true }, (lock) => {
      if (lock === null) return answer(null);
      return new Promise((release) => answer(release)); // held until `release` is called, or the tab is gone
    });
  });
}

/** Run `visit` when it is this tab's turn to catch up. */
export async function takeTurn(signal, visit) {
  try {
    await locks.request("pythonserver.visit", { signal }, visit);
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}
