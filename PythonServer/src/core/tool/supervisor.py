"""The supervisor of one shell call: a program of its own. ``supervised.py`` starts it, and takes its words from here.

It is the *subreaper* of all that the command starts: whatever loses its parent becomes a child of this process, also
what left the group, the session, or both. So "nothing is left" is a fact that the kernel states (``waitpid`` finds no
child), not a guess from a list of processes.

The control socket says when to end. It is shut by the server for a stop: TERM to all, and after the grace KILL to what
is left. It is closed by the kernel when the server dies, however it dies: then KILL comes at once, so that the next
server finds nothing of it. What goes back is lines:
``over <wait status>`` if the command has ended by itself, and ``gone <wait status> <how>`` when nothing is left.

It starts with ``python -I -S`` and imports built-in modules only. ``posix`` is ``os`` and ``_signal`` is ``signal``
without their Python parts (measured: 5 ms of 17), ``_ctypes`` is the way to ``prctl`` without the 2 ms of ``ctypes``.
"""

import _ctypes
import _signal  # type: ignore[import-not-found]
import posix
import select
import sys
import time

#: The environment variable that carries the command; the command itself does not see it. An argument would make
#: ``pkill -f`` find this process too.
COMMAND = b"SUPERVISOR_COMMAND"

#: How a call ended: the command by itself; all by TERM; some by KILL; the command was never started; it could not be.
ITSELF, TERM, KILL, NEVER, FAILED = "itself", "term", "kill", "never", "failed"
#: What a line of the report is about.
OVER, GONE = "over", "gone"

_PR_SET_CHILD_SUBREAPER = 36
_RTLD_NOW = 2
#: Signals that are not for this process, even if somebody sends them to everything in sight.
_DEAF_TO = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2)
#: Seconds that the command's own group gets at most to die of TERM before the rest is looked for. Mostly there is no
#: rest, and the walk of ``/proc`` costs 8 µs a process of the machine: much, when fifty calls are stopped at once.
_LOOK_FURTHER_AFTER_S = 0.02


class Supervisor:
    """One command and all that comes of it."""

    def __init__(self, control: int, grace_s: float) -> None:
        self.control = control
        self.grace_s = grace_s
        self.command = 0
        self.status = 0
        self.is_command_over = False
        self.woken, wake = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        for number in _DEAF_TO:
            _signal.signal(number, _signal.SIG_IGN)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self, command: bytes, environment: dict[bytes, bytes]) -> str:
        """The whole life of the call; says how it ended. When it returns, nothing is left."""
        if self._is_told():
            return NEVER
        self.command, fault = start(command, environment)
        if fault:
            self._kill_all()
            self.status = fault
            return FAILED
        while not self.is_command_over:
            if self._is_told():
                return self._stop()
            self._wait(None, self.control, self.woken)
            self._reap()
        self.tell(f"{OVER} {self.status}")
        self._kill_all()
        return ITSELF

    def tell(self, line: str) -> None:
        """Tell the server, if it is still there."""
        try:  # noqa: SIM105  contextlib takes a while to import
            posix.write(self.control, f"{line}\n".encode())
        except OSError:
            pass

    def _is_told(self) -> bool:
        return self.control in self._wait(0, self.control)

    def _stop(self) -> str:
        """TERM to all at once; KILL to what is left when the grace is over."""
        deadline = time.monotonic() + (0 if self._is_server_gone() else self.grace_s)
        signal_group(self.command, _signal.SIGTERM)
        if self._wait_none_left(min(deadline, time.monotonic() + _LOOK_FURTHER_AFTER_S), self.command):
            return TERM
        for group in {group for _, group in descendants()} - {self.command}:
            signal_group(group, _signal.SIGTERM)
        if self._wait_none_left(deadline):
            return TERM
        self._kill_all()
        return KILL

    def _kill_all(self) -> None:
        """Until nothing is left. What is born meanwhile is met by the next round."""
        while not self._reap():
            found = descendants()
            # Groups first: the kernel lets no process be forked past a signal to its group.
            for group in {group for _, group in found}:
                signal_group(group, _signal.SIGKILL)
            for pid, _ in found:
                send(_signal.SIGKILL, pid)
            # Some child of this process was among them, or has died since: this wait ends.
            self._wait(None, self.woken)

    def _wait_none_left(self, deadline: float, group: int = 0) -> bool:
        """False at the deadline, when the server dies, or as soon as others than the ``group`` are all that is left."""
        while not self._reap():
            left = deadline - time.monotonic()
            if left <= 0 or (group and not has_members(group)) or self._is_server_gone():
                return False
            self._wait(left, self.woken, hang_up=self.control)
        return True

    def _is_server_gone(self) -> bool:
        """Whether the other end of the control socket is closed, and not just shut for a stop."""
        return self.control in self._wait(0, hang_up=self.control)

    def _reap(self) -> bool:
        """Take in the dead; True if there is no child, and so no descendant, any more."""
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            if pid == self.command:
                self.status, self.is_command_over = status, True

    def _wait(self, seconds: float | None, *descriptors: int, hang_up: int = -1) -> list[int]:
        """Those that are readable, or hung up, once there is one. Takes the wake-up back: look at the children next."""
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        if hang_up >= 0:
            poller.register(hang_up, 0)
        ready = [descriptor for descriptor, _ in poller.poll(None if seconds is None else seconds * 1000)]
        if self.woken in ready:
            posix.read(self.woken, 65536)
        return ready


def start(command: bytes, environment: dict[bytes, bytes]) -> tuple[int, int]:
    """Start ``/bin/sh -c command`` in a session of its own; its pid, and the errno if that failed."""
    started, starting = posix.pipe2(posix.O_CLOEXEC)
    try:
        pid = posix.fork()
    except OSError as error:
        return 0, error.errno or 1
    if not pid:
        try:
            become_command(command, environment)
        except OSError as error:
            posix.write(starting, f"{error.errno}".encode())
        posix._exit(127)
    posix.close(starting)
    # Ends when the exec closes the other side: from then on the command has a session of its own, and hears TERM.
    fault = posix.read(started, 16)
    posix.close(started)
    return pid, int(fault or 0)


def become_command(command: bytes, environment: dict[bytes, bytes]) -> None:
    """In the child: give up this process's ways, and become the shell."""
    posix.setsid()
    for number in (*_DEAF_TO, _signal.SIGCHLD, _signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    posix.execve(b"/bin/sh", [b"/bin/sh", b"-c", command], environment)


def descendants() -> list[tuple[int, int]]:
    """(pid, process group) of all below this process, the dead that nobody has taken in too: one walk of ``/proc``."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in posix.listdir("/proc"):
        # "pid (name) state parent group ...", and the name may hold anything, brackets too.
        fields = read_stat(name).rpartition(b")")[2].split(None, 3) if name.isdigit() else ()
        if len(fields) > 3:
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[2])))
    found: list[tuple[int, int]] = []
    waiting = [posix.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [pid for pid, _ in below]
    return found


def read_stat(pid: str) -> bytes:
    """Empty if the process has gone."""
    try:
        file = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY)
    except OSError:
        return b""
    try:
        return posix.read(file, 4096)
    except OSError:
        return b""
    finally:
        posix.close(file)


def signal_group(group: int, number: int) -> None:
    """To all of a group at once, also to those that are suspended. Never to this process's own, nor to "all"."""
    if group > 1 and group != posix.getpgrp():
        send(number, -group)
        send(_signal.SIGCONT, -group)


def has_members(group: int) -> bool:
    """Also those count that are dead and not taken in."""
    try:
        posix.killpg(group, 0)
    except OSError:
        return False
    return True


def send(number: int, target: int) -> None:
    """A signal to a process, or to a group as a negative number, that may have gone or be out of reach."""
    try:  # noqa: SIM105
        posix.kill(target, number)
    except OSError:
        pass


def become_subreaper() -> None:
    """Linux: orphans below this process become its children, instead of init's."""
    program = _ctypes.dlopen(None, _RTLD_NOW)  # type: ignore[arg-type]
    prctl = _ctypes.dlsym(program, "prctl")
    if _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)):
        raise OSError("prctl: this kernel knows no subreapers")


def own_environment() -> dict[bytes, bytes]:
    """As it was handed over. In ``posix.environ`` there may be more: Python sets LC_CTYPE where the locale is C."""
    file, data = posix.open("/proc/self/environ", posix.O_RDONLY), b""
    while piece := posix.read(file, 65536):
        data += piece
    posix.close(file)
    return dict(entry.split(b"=", 1) for entry in data.split(b"\0") if b"=" in entry)


def main(control: int, grace_s: float) -> None:
    """Run the command of the environment, and report on ``control``."""
    posix.set_inheritable(control, False)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())  # whatever the thread that started this had blocked
    environment = own_environment()
    command = environment.pop(COMMAND)
    supervisor = Supervisor(control, grace_s)
    become_subreaper()
    how = supervisor.run(command, environment)
    supervisor.tell(f"{GONE} {supervisor.status} {how}")
    posix._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
