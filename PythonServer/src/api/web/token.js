// The bearer token: handed over once in the address, then kept for this tab alone.

const KEY = "pythonserver.token";

/** Take `#token=…` out of the address, so that it is neither bookmarked nor seen over a shoulder. */
export function takeTokenFromAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const token = words.get("token");
  if (token === null) return false;
  words.delete("token");
  const rest = words.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest ? `#${rest}` : ""));
  setToken(token);
  return true;
}

export function getToken() {
  return sessionStorage.getItem(KEY);
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token.trim());
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}
