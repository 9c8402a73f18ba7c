"""What a command of an agent does not get to see of the server that runs it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import SECRET
from tests.support.model_server import ModelServer
from tests.support.plans import start_plan
from tests.support.servers import REMOTE_TOKEN, ServerProcess

API_KEY = "the-key-of-the-model-server"
#: Starts the server without capabilities: with them root may look into any process, and tests may run as root.
_AS_ANYBODY = """
import ctypes, os, sys
PR_CAPBSET_DROP = 24
for capability in range(64):
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "api"])
"""


@pytest.fixture
def server(models: ModelServer, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with the shell and with secrets, and no way to look into other processes."""
    process = ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="shell", LLM_API_KEY=API_KEY)
    process.arguments = ("-c", _AS_ANYBODY)
    with process:
        yield process


def test_a_command_cannot_read_the_environment_of_the_server(server: ServerProcess) -> None:
    assert server.process is not None
    master = server.process.pid
    worker = Path(f"/proc/{master}/task/{master}/children").read_text().split()[0]
    command = f"""
        for pid in {master} {worker} $PPID; do
            tr '\\0' '\\n' < /proc/$pid/environ && echo "read $pid"
        done
        echo "supervisor is $PPID;"
    """
    run = start_plan(server.api(), {"id": "look", "tool": {"name": "shell", "arguments": {"command": command}}})
    run.wait_parked()

    seen = run.goals()["look"]["result"]

    for secret in (SECRET, REMOTE_TOKEN, API_KEY):
        assert secret not in seen
    (supervisor,) = re.findall(r"supervisor is (\d+);", seen)
    read = [pid for pid in (str(master), worker, supervisor) if f"read {pid}" in seen]
    assert read == [supervisor]
