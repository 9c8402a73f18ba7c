// The second of two quick clicks at one spot is meant for what was there at the first. If something else is there by
// then, because a row has gone or a button has made way for another, the click does nothing.

const QUICK_MS = 700;
const NEAR_PX = 16;
const PRESSED = "button, a, summary, label";

export function guardSameSpot(root) {
  let last = null; // {at, x, y, pressed}
  root.addEventListener("click", (event) => {
    if (event.detail === 0) return; // by a key
    const { timeStamp: at, clientX: x, clientY: y } = event;
    const pressed = event.target.closest(PRESSED);
    const isSecond = last !== null && at - last.at < QUICK_MS && Math.hypot(x - last.x, y - last.y) < NEAR_PX;
    if (isSecond && pressed !== null && pressed !== last.pressed) {
      event.preventDefault();
      event.stopPropagation();
      last.at = at;
    } else {
      last = { at, x, y, pressed };
    }
  }, { capture: true });
}
