"""DATA_DIR: who holds it, and the development secret that lives there."""

import contextlib
import fcntl
import os
import secrets
import stat
import threading
from pathlib import Path

from core.errors import ConfigurationError

#: A server that was killed -9 needs a moment until the kernel has taken its lock away. Seconds.
PATIENCE_S = 1.0


class DataDirLock:
    """The lock on a DATA_DIR, held for as long as this object, or a forked copy of it, lives.

    It is the kernel's ``flock``, so it goes with the process, however that ends; the number in the file only
    tells a human who holds it, or who did not give it back.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._holder = os.getpid()

    def release(self) -> None:
        """Give the lock back; the file is empty then. Harmless if repeated."""
        if self._fd >= 0:
            if os.getpid() == self._holder:  # while it is still locked: nobody else has written to it
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def lock_data_dir(data_dir: Path) -> DataDirLock:
    """Take the lock, making the folder if need be. Raises ``ConfigurationError`` if another server has it."""
    make_data_dir(data_dir)
    try:
        fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(data_dir, error) from None
    if not _flock(fd):
        holder = _holder(fd)
        os.close(fd)
        raise ConfigurationError(
            f"DATA_DIR={str(data_dir)!r} is in use by another server{holder}: "
            "stop that one, or give this one a DATA_DIR of its own"
        )
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return DataDirLock(fd)


def make_data_dir(data_dir: Path) -> None:
    """Make the folder, for this user only, unless it is there."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(data_dir, error) from None


def development_secret(data_dir: Path) -> str:
    """The secret that signs tokens while no key is configured: made once, mode 0600, the same for all.

    Raises ``ConfigurationError`` if others may read the file or it is damaged.
    """
    make_data_dir(data_dir)
    path = data_dir / "jwt_secret"
    try:
        if not path.exists():
            _make_secret(path)
        return _read_secret(path)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be used ({error.strerror}): set AUTH_JWT_SECRET, or another DATA_DIR"
        ) from None


def _make_secret(path: Path) -> None:
    draft = path.with_name(f".jwt_secret.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(48) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link appears whole or not at all and never replaces: of two racing starts one wins, both read it.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)


def _read_secret(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ConfigurationError(
                f"{path} can be read by others: delete it (its tokens end with it) or set AUTH_JWT_SECRET"
            )
        secret = file.read().strip()
    if len(secret) < 64:
        raise ConfigurationError(f"{path} is damaged: delete it, a new one is made at the next start")
    return secret


def _flock(fd: int) -> bool:
    """Whether the lock was had in time: a server that was killed may take a moment to be gone."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        locked = threading.Event()
        threading.Thread(target=_wait_for_lock, args=(os.dup(fd), locked), name="lock", daemon=True).start()
        return locked.wait(PATIENCE_S)
    return True


def _wait_for_lock(fd: int, locked: threading.Event) -> None:
    """The lock belongs to what both descriptors stand for: when the caller has given up and closed the other one, it
    goes with this one.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        locked.set()
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    return f" (pid {text})" if text.isdecimal() else ""


def _unusable(data_dir: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"DATA_DIR={str(data_dir)!r} cannot be used ({error.strerror}): give a folder that can be written to"
    )
