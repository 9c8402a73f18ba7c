"""A stand-in MCP server, a program of its own, without the SDK: what it logs is what has come over the wire.

``python mcp_server.py LOG [--http] [MODE …]``. LOG gets one JSON object a line: ``{"event": "call" | "cancelled" |
"initialize" | "answer" | "closed" | …, …}``. With ``--http`` it prints its address. Modes: ``hang-initialize``,
``deaf-reader`` (reads nothing after the handshake), ``wrong-list`` (a list of tools of the wrong shape),
``wrong-schema`` (one tool whose schema is wrong), ``child`` (starts a process in a session of its own), ``fail`` (exits
at once), ``noisy`` (writes what is no message, and much to stderr), ``deaf-notices`` (over HTTP: never answers a
notification), ``json`` (over HTTP: answers calls as JSON too), ``newest`` (knows the newest protocol alone),
``wrong-output`` (what ``structured`` answers does not fit its schema), ``storm`` (its list of tools changes all the
time), ``encoded`` (over HTTP: answers calls compressed), ``refuse-notices`` (over HTTP: answers a cancel notice with
status 500), ``shut-door`` (over HTTP: takes no connection any more once it has got a call).
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]
Send = Callable[[Message], None]

NEWEST = "2026-07-28"
_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = {
    "echo": "answers with its text",
    "slow": "answers nothing until it is cancelled, and nothing then either",
    "late": "answers when it is cancelled",
    "deaf": "never answers, whatever comes",
    "die": "the server exits in the middle",
    "progress": "says three times how far it is, and then is slow",
    "flood": "says how far it is until it is cancelled",
    "huge": "answers with a long text",
    "enormous": "answers with a longer line than any client takes",
    "fail": "answers with an error result",
    "refuse": "answers with an error of the protocol",
    "kinds": "answers with content of several kinds",
    "structured": "answers with structured content alone",
    "half": "answers with half a character",
    "more": "the server has another tool from now on",
    "environment": "answers with the names of the variables that it sees",
}


class StandIn:
    """What both transports share."""

    def __init__(self, log: str, modes: set[str]) -> None:
        self.modes = modes
        self.lists = 0
        self.tools = [{"name": name, "description": text, "inputSchema": _TEXT} for name, text in TOOLS.items()]
        if "wrong-schema" in modes:
            self.tools.append({"name": "wrong", "inputSchema": {"type": "object", "properties": {"a": {"type": 7}}}})
        if "wrong-output" in modes:
            wrong = {"type": "object", "properties": {"answer": {"type": "string"}}}
            next(tool for tool in self.tools if tool["name"] == "structured")["outputSchema"] = wrong
        if "wrong-list" in modes:
            self.tools.append({"name": "wrong", "inputSchema": "no schema"})
        self.cancelled: dict[Any, threading.Event] = {}
        self._log = open(log, "a", encoding="utf-8")  # noqa: SIM115
        self._lock = threading.Lock()

    def note(self, event: str, **fields: Any) -> None:
        """A line of the log."""
        with self._lock:
            self._log.write(json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n")
            self._log.flush()

    def answer(self, message: Message, send: Send) -> None:
        """Answer a request; may block for as long as the call takes."""
        method, number = message["method"], message["id"]
        params = message.get("params", {})
        if method == "initialize" and "newest" in self.modes:
            fault = {"code": -32022, "message": "unsupported", "data": {"supported": [NEWEST], "requested": "x"}}
            send({"jsonrpc": "2.0", "id": number, "error": fault})
            return
        if method == "server/discover" and "newest" in self.modes:
            self.note("discover")
            result = {
                "resultType": "complete", "supportedVersions": [NEWEST], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private",
            }  # fmt: skip
        elif method == "initialize":
            self.note("initialize")
            if "hang-initialize" in self.modes:
                threading.Event().wait()
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "stand-in", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
        elif method == "tools/list":
            self.note("list")
            result = {"tools": self.tools}
            if "storm" in self.modes:
                self.lists += 1
                result = {"tools": [*self.tools, {"name": f"new_{self.lists}", "inputSchema": _TEXT}]}
            if "newest" in self.modes:
                result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        elif method == "tools/call":
            self.note("call", id=number, tool=params["name"], arguments=params.get("arguments"))
            self.call(number, params["name"], params, send)
            return
        else:
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no such method"}})
            return
        send({"jsonrpc": "2.0", "id": number, "result": result})

    def hear(self, message: Message) -> None:
        """A notification."""
        if message["method"] == "notifications/cancelled":
            self.note("cancelled", id=message["params"]["requestId"])
            self.cancelled.setdefault(message["params"]["requestId"], threading.Event()).set()

    def call(self, number: Any, tool: str, params: Message, send: Send) -> None:
        """One call of a tool."""
        cancelled = self.cancelled.setdefault(number, threading.Event())
        text = (params.get("arguments") or {}).get("text", "")
        result: Message = {"content": [{"type": "text", "text": text}]}
        if "newest" in self.modes:
            result["resultType"] = "complete"
        if tool in ("progress", "flood"):
            self._say_progress(params["_meta"]["progressToken"], tool, cancelled, send)
        if tool in ("slow", "progress", "flood"):
            cancelled.wait()
            return
        if tool == "deaf":
            threading.Event().wait()
        if tool == "die":
            self._log.flush()
            os._exit(3)
        if tool == "late":
            cancelled.wait()
        if tool == "refuse":
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": "not like that"}})
            return
        if tool == "more":
            self.tools.append({"name": f"more_{text}", "description": "new", "inputSchema": _TEXT})
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        send({"jsonrpc": "2.0", "id": number, "result": {**result, **_special(tool)}})
        self.note("answer", id=number)

    def _say_progress(self, token: Any, tool: str, cancelled: threading.Event, send: Send) -> None:
        count = 0
        while not cancelled.is_set() and (tool == "flood" or count < 3):
            count += 1
            text = "x" * 1000 if tool == "flood" else f"step {count}"
            params = {"progressToken": token, "progress": count, "total": 3, "message": text}
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def _special(tool: str) -> Message:
    if tool == "huge":
        return {"content": [{"type": "text", "text": "begin" + "x" * 300_000 + "end"}]}
    if tool == "enormous":
        return {"content": [{"type": "text", "text": "x" * 10_000_000}]}
    if tool == "fail":
        return {"content": [{"type": "text", "text": "it did not work"}], "isError": True}
    if tool == "kinds":
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        link = {"type": "resource_link", "name": "notes", "uri": "file:///notes"}
        blob = {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAA=", "mimeType": "application/zip"}}
        inside = {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}}
        return {"content": [{"type": "text", "text": "words"}, image, link, blob, inside]}
    if tool == "structured":
        return {"content": [], "structuredContent": {"answer": 42}}
    if tool == "half":
        return {"content": [{"type": "text", "text": "half \ud83d, pair \ud83d\ude00"}]}
    if tool == "environment":
        return {"content": [{"type": "text", "text": " ".join(f"{k}={v}" for k, v in sorted(os.environ.items()))}]}
    return {}


def _say_changed(send: Send) -> None:
    while True:
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        time.sleep(0.005)


def serve_stdio(server: StandIn) -> None:
    """JSON lines, until the input ends."""
    lock = threading.Lock()

    def send(message: Message) -> None:
        with lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    if "noisy" in server.modes:
        print("this is no message", flush=True)
        sys.stderr.write("noise " * 200_000)
    if "storm" in server.modes:
        threading.Thread(target=_say_changed, args=(send,), daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            server.hear(message)
            if "deaf-reader" in server.modes and message["method"] == "notifications/initialized":
                # The list of tools was asked for behind it, and is all that it still hears.
                server.answer(json.loads(sys.stdin.readline()), send)
                threading.Event().wait()
        elif message["method"] == "tools/call":
            threading.Thread(target=server.answer, args=(message, send), daemon=True).start()
        else:
            server.answer(message, send)
    server.note("closed")


def make_handler(server: StandIn) -> type[BaseHTTPRequestHandler]:
    """Streamable HTTP: every call is answered as a stream, all else as JSON."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            encoding = self.headers.get("Accept-Encoding")
            server.note("post", method=message["method"], secret=self.headers.get("X-Secret"), encoding=encoding)
            if "shut-door" in server.modes:
                self.close_connection = True
                if message["method"] == "tools/call":
                    self.server.shutdown()
                    self.server.socket.close()
            if message["method"] != "initialize" and self.headers.get("Mcp-Session-Id") != str(os.getpid()):
                self._head(404, {"Content-Length": "0"})
            elif "id" not in message:
                server.hear(message)
                if "deaf-notices" in server.modes and message["method"] == "notifications/cancelled":
                    threading.Event().wait()
                if "refuse-notices" in server.modes and message["method"] == "notifications/cancelled":
                    self._head(500, {"Content-Length": "0"})
                    return
                self._head(202, {"Content-Length": "0"})
            elif message["method"] == "tools/call" and "json" not in server.modes:
                encoded = {"Content-Encoding": "gzip"} if "encoded" in server.modes else {}
                self._head(200, {"Content-Type": "text/event-stream", "Connection": "close", **encoded})
                server.answer(message, self._send_event)
                self.close_connection = True
            else:
                server.answer(message, self._send_json)

        def do_GET(self) -> None:
            self._head(405, {"Content-Length": "0"})

        def do_DELETE(self) -> None:
            server.note("closed")
            self._head(200, {"Content-Length": "0"})

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Mcp-Session-Id": str(os.getpid()), **headers}.items():
                self.send_header(name, value)
            if self.close_connection and "Connection" not in headers:
                self.send_header("Connection", "close")
            self.end_headers()

        def _send_json(self, message: Message) -> None:
            data = json.dumps(message).encode()
            is_call = "content" in message.get("result", {})
            data = gzip.compress(data) if is_call and "encoded" in server.modes else data
            encoded = {"Content-Encoding": "gzip"} if is_call and "encoded" in server.modes else {}
            self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(data)), **encoded})
            self.wfile.write(data)

        def _send_event(self, message: Message) -> None:
            data = f"event: message\ndata: {json.dumps(message)}\n\n".encode()
            self.wfile.write(gzip.compress(data) if "encoded" in server.modes else data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def main(log: str, *options: str) -> None:
    """See the module."""
    modes = set(options) - {"--http"}
    server = StandIn(log, modes)
    server.note("start", parent=os.getppid())
    if "fail" in modes:
        sys.exit(7)
    if "child" in modes:
        child = subprocess.Popen(["sleep", "7777"], start_new_session=True, stdin=subprocess.DEVNULL)
        server.note("child", child=child.pid)
    if "--http" not in options:
        serve_stdio(server)
        return
    port = next((int(mode) for mode in modes if mode.isdigit()), 0)
    http = ThreadingHTTPServer(("127.0.0.1", port), make_handler(server))
    http.daemon_threads = True
    print(f"http://127.0.0.1:{http.server_port}/mcp", flush=True)
    http.serve_forever()
    threading.Event().wait()  # its door is shut; what it has begun goes on


if __name__ == "__main__":
    main(*sys.argv[1:])
