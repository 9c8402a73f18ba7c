"""DATA_DIR: its development secret and its lock."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import core.data_dir
from core.data_dir import development_secret, lock_data_dir
from core.errors import ConfigurationError

SOURCES = Path(core.data_dir.__file__).absolute().parents[1]


def _running(program: str, data_dir: Path) -> subprocess.Popen[str]:
    """Another process, which holds the folder."""
    return subprocess.Popen(
        [sys.executable, "-c", program, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )


def test_racing_starts_agree_on_one_development_secret(tmp_path: Path) -> None:
    gate = threading.Barrier(8)
    found: list[str] = []

    def start() -> None:
        gate.wait(10)
        found.append(development_secret(tmp_path / "data"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert os.listdir(tmp_path / "data") == ["jwt_secret"]
    assert stat.S_IMODE((tmp_path / "data" / "jwt_secret").stat().st_mode) == 0o600


def test_a_development_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = development_secret(tmp_path)
    (tmp_path / "jwt_secret").chmod(0o640)

    with pytest.raises(ConfigurationError, match="read by others") as caught:
        development_secret(tmp_path)

    assert secret not in str(caught.value)


def test_a_damaged_or_linked_development_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jwt_secret").touch(0o600)
    with pytest.raises(ConfigurationError, match="damaged"):
        development_secret(tmp_path)

    (tmp_path / "jwt_secret").rename(tmp_path / "elsewhere")
    (tmp_path / "jwt_secret").symlink_to("elsewhere")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        development_secret(tmp_path)


def test_a_second_lock_on_a_data_dir_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    held = lock_data_dir(tmp_path / "new" / "data")
    with pytest.raises(ConfigurationError, match=rf"in use by another server \(pid {os.getpid()}\)"):
        lock_data_dir(tmp_path / "new" / "data")

    held.release()
    assert (tmp_path / "new" / "data" / "lock").read_text() == ""
    held.release()
    lock_data_dir(tmp_path / "new" / "data").release()


def test_a_forked_copy_gives_back_its_share_of_the_lock_and_the_file_still_names_the_holder(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys; from core.data_dir import lock_data_dir;"
        "lock = lock_data_dir(pathlib.Path(sys.argv[1])); child = os.fork();\n"
        "if not child: lock.release(); os._exit(0)\n"
        "os.waitpid(child, 0); print('forked', flush=True); sys.stdin.read(); lock.release()"
    )
    with _running(program, tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "forked\n"
        with pytest.raises(ConfigurationError, match=f"pid {holder.pid}"):
            lock_data_dir(tmp_path)
        holder.communicate(timeout=60)

    assert (tmp_path / "lock").read_text() == ""


def test_a_data_dir_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match="DATA_DIR="):
        lock_data_dir(tmp_path / "file" / "data")


def test_the_lock_goes_with_a_holder_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time; from core.data_dir import lock_data_dir;"
        "lock = lock_data_dir(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with _running(program, tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigurationError, match=f"pid {holder.pid}"):
            lock_data_dir(tmp_path)
        holder.kill()

    lock_data_dir(tmp_path).release()
