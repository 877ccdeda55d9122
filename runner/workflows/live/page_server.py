"""Page server: HTTP on 127.0.0.1 for whoever has the token, and for no other origin.

It serves documents only, and reads nothing but the head of a request. A client may be slow or
silent: each step of a connection has a deadline, and their number is bounded.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http.server
import io
import os
import secrets
import socket
import socketserver
import threading
import time
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from runner.core.errors import NotReady, Problem
from runner.workflows.live.document import Content, Document
from runner.workflows.live.event_streams import EventStreams

ADDRESS = "127.0.0.1"
MAX_CONNECTIONS = 256
ACCEPT_PAUSE_S = 0.2  # after a connection that could not be accepted
MAX_HEAD = 32 << 10  # bytes of a request
HEAD_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 60.0
"""The time for a whole response: a page of megabytes may go through a slow `ssh -L`."""

POLICY = (
    "default-src 'none'",
    "script-src 'unsafe-inline'",  # ui/page/render.py names the hashes of the scripts
    "style-src 'unsafe-inline'",
    "img-src data: blob:",
    "font-src data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "; ".join(POLICY),
}

BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Retry-After: 2\r\n\r\ntoo many connections at once\n"
)


class Busy(Exception):
    """There is no room for one more page now."""


FindDocument = Callable[[str], Document | None]
"""Takes a run id, "" for what is at the root; it may raise `Busy`."""


class PageServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves documents until it is closed."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True  # of connections that have ended, not of another server
    request_queue_size = 128

    def __init__(self, port: int, streams: EventStreams) -> None:
        """Listen on a port, 0 for a free one; raise NotReady if it cannot be had."""
        self.token = secrets.token_urlsafe(32)
        self.find: FindDocument = lambda _: None
        self.streams = streams
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._kept: set[socket.socket] = set()
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise NotReady([_port_problem(port, error)]) from None
        self.port = int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; one that waits because of too many open files keeps no core busy."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                time.sleep(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, if there are not too many."""
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.send(BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def keep(self, connection: socket.socket, document: Document) -> None:
        """Make a connection, whose response has begun, an event stream."""
        self._kept.add(connection)
        self.streams.add(connection, document)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, unless it has become an event stream."""
        if request in self._kept:
            self._kept.discard(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that leaves in the middle is no error here."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: PageServer
    server_version, sys_version = "runner", ""

    def handle(self) -> None:
        """Answer the request, if it comes in time; the connection ends after that."""
        with contextlib.suppress(OSError):
            head = self._read_head()
            self.connection.settimeout(SEND_TIMEOUT_S)
            if not head.endswith(b"\r\n\r\n"):
                self.requestline, self.request_version = "", "HTTP/1.0"
                self.command = "GET"
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, "no request that ends in time")
                return
            self.rfile = io.BytesIO(head)
            self.handle_one_request()

    def _read_head(self) -> bytes:
        head, deadline = b"", time.monotonic() + HEAD_TIMEOUT_S
        while b"\r\n\r\n" not in head and len(head) < MAX_HEAD:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self.connection.settimeout(left_s)
            try:
                data = self.connection.recv(4096)
            except TimeoutError:
                break
            if not data:
                raise ConnectionAbortedError
            head += data
        found, end, _ = head.partition(b"\r\n\r\n")
        return found + end

    def do_GET(self) -> None:
        """Answer with a document, its data or its events."""
        address = urllib.parse.urlsplit(self.path)
        if problem := self._origin_problem(address):
            self._refuse(HTTPStatus.FORBIDDEN, problem)
        elif address.path == "/favicon.ico":
            self._begin(HTTPStatus.NO_CONTENT)
        elif not self._has_token(address.query):
            message = "the token is missing or is not that of this server, which may have been "
            self._refuse(HTTPStatus.FORBIDDEN, f"{message}started again: open the address it said")
        else:
            self._serve(*address.path.rpartition("/")[::2])

    do_HEAD = do_GET  # noqa: N815 (the name http.server gives it)

    def _origin_problem(self, address: urllib.parse.SplitResult) -> str:
        hosts = {f"{ADDRESS}:{self.server.port}", f"localhost:{self.server.port}"}
        host = self.headers.get("Host", "")
        if address.netloc or address.scheme or host not in hosts:
            return f"this server answers to {' and '.join(sorted(hosts))} only"
        origin = self.headers.get("Origin")
        is_navigation = self.headers.get("Sec-Fetch-Mode") == "navigate"
        site = self.headers.get("Sec-Fetch-Site", "none")
        is_foreign = site not in ("none", "same-origin") and not is_navigation
        if is_foreign or origin not in (None, f"http://{host}"):
            return "this server answers to its own page only"
        return ""

    def _has_token(self, query: str) -> bool:
        try:
            tokens = urllib.parse.parse_qs(query, max_num_fields=8).get("token", [""])
        except ValueError:
            return False
        return hmac.compare_digest(tokens[-1].encode(), self.server.token.encode())

    def _serve(self, place: str, leaf: str) -> None:
        run_id = "" if not place else place.removeprefix("/run/")
        is_known = place in ("", f"/run/{run_id}") and leaf in ("", "data.json", "events")
        try:
            document = self.server.find(run_id) if is_known else None
        except Busy as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        if document is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        elif leaf == "events":
            self._stream(document)
        else:
            self._send_version(document, leaf)

    def _send_version(self, document: Document, leaf: str) -> None:
        version = document.version()
        if version is None:
            reason = document.problem or "the record is still being read; try again"
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"no page yet: {reason}")
        elif leaf:
            self._send(version.data, "application/json")
        else:
            self._send(version.page, "text/html; charset=utf-8")

    def _stream(self, document: Document) -> None:
        if self.command == "HEAD":
            self._begin(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
        elif not self.server.streams.reserve():
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages follow this at once")
        else:
            try:
                self._begin(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
            except OSError:
                self.server.streams.release()
                raise
            self.server.keep(self.connection, document)

    def _send(self, content: Content, content_type: str) -> None:
        compressed = "gzip" in self.headers.get("Accept-Encoding", "")
        body = content.encoded(compressed=compressed)
        headers = {"Content-Type": content_type, "Content-Length": str(len(body))}
        headers |= {"Content-Encoding": "gzip"} if compressed else {}
        self._begin(HTTPStatus.OK, headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with one line of text."""
        body = f"{message}\n".encode(errors="backslashreplace")
        length = str(len(body))
        headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": length}
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        self._begin(status, headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **(headers or {}), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server refuses by itself, such as another method."""
        del explain
        self.command = self.command or "GET"
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status, message = HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are all that is answered"
        self._refuse(status, (message or status.phrase).splitlines()[0])

    def version_string(self) -> str:
        """Return the name of the server, without versions."""
        return self.server_version

    def log_message(self, *args: Any) -> None:
        """Print nothing: the terminal is the user's."""


def _port_problem(port: int, error: OSError) -> Problem:
    if error.errno == errno.EADDRINUSE:
        message = f"port {port} of {ADDRESS} is taken"
        return Problem("--port", message, "choose another, or leave --port out for a free one")
    reason = error.strerror or os.strerror(error.errno or 0)
    hint = "choose one from 1024 on, or leave --port out for a free one"
    return Problem("--port", f"cannot listen on port {port} of {ADDRESS}: {reason}", hint)
