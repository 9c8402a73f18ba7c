"""The stand-in gateway that is started beside the server while no model is configured."""

import contextlib
import os
import re
import selectors
import subprocess
import sys
import time

from core.errors import ConfigurationError

READY = re.compile(r"de2generator listening on (http://127\.0\.0\.1:\d+)")
#: Loading the small real weights takes a few seconds; this is a bound, not an expectation.
START_S = 60.0
#: What the child has no business to know.
PRIVATE_VARIABLES = ("AUTH_JWT_SECRET", "REMOTE_SESSION_API_TOKEN", "LLM_API_KEY", "DATABASE_URL")


class StandIn:
    """The child process. It ends with the server: by :meth:`stop`, or by the kernel if that never comes."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self._process = process
        #: Its ``{de2generator-uri}``.
        self.url = url

    def stop(self) -> None:
        """End it, within about five seconds. Harmless if repeated."""
        # The server's master reaps every child; Popen then finds none and signals nobody.
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def start_stand_in(with_weights: bool) -> StandIn:
    """Start it on a free port and wait until it listens. Raises ``ConfigurationError`` if it does not."""
    command = [sys.executable, "-m", "de2generator", "--port", "0"]
    command += ["--die-with-parent", str(os.getpid())]
    if with_weights:
        command.append("--smollm2")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # A group of its own: Ctrl-C goes to the server, which first stops what is running there.
        process_group=0,
        env={name: value for name, value in os.environ.items() if name not in PRIVATE_VARIABLES},
    )
    line = _first_line(process)
    found = READY.search(line)
    if found is None:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        said = f" (it said {line.strip()[:80]!r})" if line.strip() else ""
        raise ConfigurationError(f"The stand-in model did not start{said}: set LLM_BASE_URL to use a real one")
    return StandIn(process, found.group(1))


def _first_line(process: "subprocess.Popen[bytes]") -> str:
    """What the child says up to the first line end, its death, or the time limit."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    said = b""
    until = time.monotonic() + START_S
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while b"\n" not in said and selector.select(max(0.0, until - time.monotonic())):
            piece = os.read(fd, 4096)
            if not piece:
                break
            said += piece
    return said.decode("utf-8", "replace")
