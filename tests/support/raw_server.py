"""A small server on loopback that says exactly the bytes a test wants, and notes what the client does."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

#: Longest wait of a test for the other side, in seconds.
PATIENCE_S = 10.0


@dataclass
class RawRequest:
    """One HTTP request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The request target."""
        return self.line.split(" ")[1]


@dataclass
class Peer:
    """One connection, as its script sees it."""

    sock: socket.socket
    number: int
    requests: list[RawRequest] = field(default_factory=list)
    #: Set when the client is seen to have hung up.
    hung_up: threading.Event = field(default_factory=threading.Event)
    #: Set when the script has ended and the socket is closed.
    gone: threading.Event = field(default_factory=threading.Event)
    #: Set by the script, for the test to wait for.
    reached: threading.Event = field(default_factory=threading.Event)
    #: Set by the test, for the script to wait for.
    go_on: threading.Event = field(default_factory=threading.Event)

    def read_request(self) -> RawRequest | None:
        """The next request; None if the client hung up instead."""
        head = self._read_head()
        if head is None:
            return None
        line, *rest = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
        body = b""
        while len(body) < int(headers.get("content-length", 0)):
            data = self.sock.recv(65536)
            if not data:
                return None
            body += data
        request = RawRequest(line, headers, body)
        self.requests.append(request)
        return request

    def _read_head(self) -> bytes | None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = self.sock.recv(1)
            if not data:
                return None
            head += data
        return head[:-4]

    def send(self, data: bytes) -> None:
        """Send now."""
        self.sock.sendall(data)

    def answer(self, body: bytes, status: str = "200 OK", content_type: str = "application/json") -> None:
        """A whole answer with a length."""
        head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)

    def begin_stream(self, extra: str = "") -> None:
        """The head of a chunked event stream."""
        framing = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        self.send(f"HTTP/1.1 200 OK\r\n{framing}{extra}\r\n".encode())

    def chunk(self, data: bytes) -> None:
        """One HTTP chunk; an empty one ends the body."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def wait_hang_up(self) -> bool:
        """Whether the client hangs up within the patience of a test. Reads away what it still sends."""
        self.sock.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            try:
                while self.sock.recv(65536):
                    pass
            except TimeoutError:
                return False
        self.hung_up.set()
        return True


Script = Callable[[Peer], None]


class RawServer:
    """Runs ``script`` on a thread for each connection. ``peers`` are in order of arrival."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self._changed = threading.Condition()
        self.peers: list[Peer] = []
        #: What a script raised, other than a broken connection.
        self.failures: list[BaseException] = []
        self.port: int = self._listener.getsockname()[1]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    def peer(self, number: int = 0) -> Peer:
        """That connection, once it has come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.peers) > number, PATIENCE_S), "no connection came"
            return self.peers[number]

    def __enter__(self) -> "RawServer":
        threading.Thread(target=self._accept, name="raw-server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A close alone would not wake the thread in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self.peers:
            peer.go_on.set()
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        if error is None and self.failures:
            raise self.failures[0]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), name="raw-peer", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
        with self._changed:
            peer = Peer(sock, len(self.peers))
            self.peers.append(peer)
            self._changed.notify_all()
        try:
            self._script(peer)
        except OSError:
            peer.hung_up.set()
        except BaseException as error:
            self.failures.append(error)
        finally:
            with contextlib.suppress(OSError):
                sock.close()
            peer.gone.set()


def self_signed(folder: str) -> tuple[ssl.SSLContext, str]:
    """A server context for 127.0.0.1 and localhost, and the path of its certificate for ``verify``."""
    import datetime
    import ipaddress
    from pathlib import Path

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, private = Path(folder, "certificate.pem"), Path(folder, "key.pem")
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, private)
    return context, str(chain)


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A loopback port whose accept queue is full, so that a further connect gets no answer."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield listener.getsockname()[1]
