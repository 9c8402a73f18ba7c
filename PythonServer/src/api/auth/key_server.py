"""The public keys that a key server publishes: kept in memory, fetched when old or when one is missing."""

import threading
import time

import jwt

from core.errors import ServerError


class KeyServerUnreachable(ServerError):
    """The key server does not answer, so that a token can be neither accepted nor refused."""

    code, status, title = "key_server_unreachable", 503, "The key server cannot be reached"

    def __init__(self) -> None:
        super().__init__("The server that publishes the token keys does not answer; try again")
        self.headers["Retry-After"] = str(int(KeyServer.RETRY_S))


class KeyServer:
    """Keys by their id. One fetch at a time, bounded, and never more often than every ``RETRY_S`` seconds.

    A known key is used at once, and fetched anew in the background when it is older than ``FRESH_S``; while the
    server is down it is good for ``STALE_S``. A STOP must not wait for a key server.
    """

    TIMEOUT_S = 5.0
    RETRY_S = 5.0
    FRESH_S = 300.0
    STALE_S = 3600.0

    def __init__(self, url: str) -> None:
        self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=self.TIMEOUT_S)
        self._lock = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._is_down = False

    def key(self, key_id: str) -> jwt.PyJWK | None:
        """The key, or None if the server does not know it. Raises :class:`KeyServerUnreachable`."""
        found = self._usable(key_id)
        if found is not None:
            if time.monotonic() - self._fetched_at >= self.FRESH_S and not self._lock.locked():
                threading.Thread(target=self._refresh, name="key-server", daemon=True).start()
            return found
        self._refresh()
        found = self._usable(key_id)
        if found is None and self._is_down:
            raise KeyServerUnreachable
        return found

    def _usable(self, key_id: str) -> jwt.PyJWK | None:
        is_too_old = time.monotonic() - self._fetched_at >= self.STALE_S
        return None if is_too_old else self._keys.get(key_id)

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._tried_at >= self.RETRY_S:
                self._fetch()

    def _fetch(self) -> None:
        try:
            keys = self._client.get_signing_keys()
        except (jwt.PyJWTError, OSError, ValueError):
            # No answer, or none that is a key set: what was known before stands.
            self._is_down = True
            return
        finally:
            self._tried_at = time.monotonic()
        self._keys = {key.key_id: key for key in keys if key.key_id}
        self._fetched_at = self._tried_at
        self._is_down = False
