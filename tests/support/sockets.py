"""What the kernel knows of a server's connections: for what no event tells of. Linux only."""

import os
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.servers import ServerProcess

#: States of the kernel's table (include/net/tcp_states.h).
_STATES = {"01": "ESTABLISHED", "02": "SYN_SENT", "08": "CLOSE_WAIT"}


def count_connections(server: ServerProcess, url: str) -> Counter[str]:
    """State -> number of the connections of a server's processes to the place of ``url``.

    The server's descriptors are hidden from its own user. Who may not look gets those of every process but this one.
    """
    assert server.process is not None
    end = f":{urlsplit(url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {row[9]: _STATES.get(row[3], row[3]) for row in rows if row[2].endswith(end) and row[9] != "0"}
    try:
        inodes = {inode for pid in _family(server.process.pid) for inode in _sockets(pid)}
    except PermissionError:
        inodes = found.keys() - set(_sockets(os.getpid()))
    return Counter(state for inode, state in found.items() if inode in inodes)


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


def _sockets(pid: int) -> list[str]:
    inodes = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.append(target.removeprefix("socket:[").removesuffix("]"))
    return inodes
