"""Connections that obey a stop: urllib3's classes, with the socket handed to the call before it is connected.

A context variable carries the call to the connection, because nothing else passes through ``requests`` and
``urllib3``. It is set only while the headers are awaited: afterwards the reading code has the call itself.
"""

import contextlib
import contextvars
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util.connection import allowed_gai_family
from urllib3.util.timeout import Timeout

from core.cancellation import Scope
from core.network.abortable import AbortableSocket
from core.network.resolver import Resolver, resolver


class AddressRefused(OSError):
    """The passenger may not go to this address; nothing was sent there."""


def _anywhere(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Passenger:
    """Whom a connection serves: what a stop shuts, which scope to ask, whom to tell before bytes leave."""

    wire: AbortableSocket
    scope: Scope
    mark_sent: Callable[[], None]
    #: Whether a connection may go to this numeric address. A connection from a pool is not asked about again: passengers
    #: with different answers must not share an adapter.
    may_reach: Callable[[str], bool] = _anywhere
    #: Who looks names up.
    names: Resolver = resolver


_passenger: contextvars.ContextVar[Passenger | None] = contextvars.ContextVar("passenger", default=None)


@contextlib.contextmanager
def carrying(passenger: Passenger) -> Iterator[None]:
    """Requests that this thread makes inside serve this passenger."""
    token = _passenger.set(passenger)
    try:
        yield
    finally:
        _passenger.reset(token)


class _Abortable(HTTPConnection):
    #: Seconds for sending one request. urllib3 would apply the connect limit, too little for a long prompt.
    SEND_LIMIT_S = 60.0

    passenger: Passenger | None = None

    def _new_conn(self) -> socket.socket:
        self.passenger = passenger = _passenger.get()
        if passenger is None:
            return super()._new_conn()
        try:
            sock = self._connect(passenger)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection to {self.host} in {self.timeout} s") from error
        except OSError as error:
            raise NewConnectionError(self, f"no connection: {error}") from error
        sys.audit("http.client.connect", self, self.host, self.port)
        return sock

    def _connect(self, passenger: Passenger) -> socket.socket:
        limit = Timeout.resolve_default_timeout(self.timeout)
        host = self._dns_host.strip("[]")
        failure: OSError | None = None
        for info in passenger.names.look_up(host, self.port, allowed_gai_family(), passenger.scope, limit):
            try:
                return self._connect_to(info[:3], info[4], passenger, limit)
            except OSError as error:
                passenger.scope.checkpoint(error)
                failure = error
        raise failure or OSError("no address")

    def _connect_to(
        self, kind: tuple[int, int, int], address: tuple[Any, ...], passenger: Passenger, limit: float | None
    ) -> socket.socket:
        # Asked about what the kernel will connect to, after look-up: a name may mean another address each time.
        if not passenger.may_reach(str(address[0])):
            raise AddressRefused("the address is refused")
        sock = socket.socket(*kind)
        try:
            for option in self.socket_options or ():
                sock.setsockopt(*option)
            # A limit also makes the connect non-blocking inside, which is what lets a shutdown end it early.
            sock.settimeout(limit)
            if self.source_address:
                sock.bind(self.source_address)
            passenger.wire.attach(sock)
            sock.connect(address)
            passenger.wire.check()
        except BaseException:
            sock.close()
            raise
        return sock

    def request(self, *args: Any, **kwargs: Any) -> None:
        passenger = _passenger.get()
        if passenger is not None:
            if self.sock is None:
                self.connect()
            elif self.passenger is not passenger:  # a connection from the pool
                self.passenger = passenger
                passenger.wire.attach(self.sock)
            self.timeout = self.SEND_LIMIT_S
            # Last line before bytes leave; raises if a stop came first.
            passenger.mark_sent()
        super().request(*args, **kwargs)

    def let_go(self) -> None:
        """The call is over and the connection may serve another: its wire can no longer shut this socket."""
        # Not in close(): http.client closes the connection object as soon as it has the headers of a
        # "Connection: close" answer, while the body is still to be read.
        passenger, self.passenger = self.passenger, None
        if passenger is not None:
            passenger.wire.detach()
            if passenger.wire.is_shut or passenger.scope.is_stopped:
                self.close()


class AbortableHTTPConnection(_Abortable):
    """http."""


class AbortableHTTPSConnection(_Abortable, HTTPSConnection):
    """https."""


class _AbortablePool(HTTPConnectionPool):
    def _put_conn(self, conn: Any) -> None:
        if isinstance(conn, _Abortable):
            conn.let_go()  # before another thread can take it
            # More calls than places is usual here, and no reason for a warning in the log.
            places = self.pool
            if places is not None and places.full():
                conn.close()
                return
        super()._put_conn(conn)


class AbortableHTTPPool(_AbortablePool):
    """http."""

    ConnectionCls = AbortableHTTPConnection


class AbortableHTTPSPool(_AbortablePool, HTTPSConnectionPool):
    """https."""

    ConnectionCls = AbortableHTTPSConnection


_POOLS = {"http": AbortableHTTPPool, "https": AbortableHTTPSPool}


class AbortableAdapter(HTTPAdapter):
    """An adapter for ``requests`` whose connections obey :func:`carrying`. Never retries by itself."""

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        """As in ``requests``, with our pools."""
        super().init_poolmanager(connections, maxsize, block, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """As in ``requests``, with our pools."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def close_pools(self) -> None:
        """Close every pooled connection now; ``close()`` only forgets the pools, which closes them some day."""
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            for key in manager.pools.keys():  # noqa: SIM118  # urllib3's container is no iterable mapping
                pool = manager.pools.get(key)
                if pool is not None:
                    pool.close()
        self.close()
