"""The server of live pages: who is answered, and that nobody can hold it up."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import NotReady
from runner.workflows.live import event_streams, page_server
from runner.workflows.live.document import Builder, Document, Status
from runner.workflows.live.event_streams import EventStreams
from runner.workflows.live.page_server import PageServer
from tests.lab.waiting import wait_until


class Counter:
    """A source whose data is a number that the test sets."""

    def __init__(self) -> None:
        self.number, self.builds = 1, 0

    def fingerprint(self) -> object:
        """Return the number."""
        return self.number

    def data(self) -> Mapping[str, Any]:
        """Return it as data."""
        self.builds += 1
        if self.number < 0:
            raise ValueError("below 0")
        return {"number": self.number}

    def page(self, data: Mapping[str, Any]) -> str:
        """Return it as a page."""
        return f"<p>{data['number']}</p>"


class Site:
    """A server with one document, and the same as `run/r-1`."""

    def __init__(self) -> None:
        self.source = Counter()
        self.document = Document(self.source)
        self.streams = EventStreams()
        self.document.on_change = self.streams.wake
        self.builder = Builder()
        self.builder.documents = lambda: [self.document]
        self.document.wake = self.builder.wake
        known = {"": self.document, "r-1": self.document}
        self.server = PageServer(0, self.streams)
        self.server.find = known.get
        self.host = f"127.0.0.1:{self.server.port}"
        self.opened = contextlib.ExitStack()
        for thread in (self.streams, self.builder):
            thread.start()
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        self.opened.close()
        self.server.shutdown()
        self.server.server_close()
        self.builder.close()
        self.streams.close()
        self.streams.join(10)

    def connect(self, text: str = "") -> socket.socket:
        """Connect, and send something."""
        connection = socket.create_connection(("127.0.0.1", self.server.port), 20)
        self.opened.enter_context(connection)
        connection.sendall(text.encode())
        return connection

    def send(self, path: str, method: str = "GET", **headers: str) -> socket.socket:
        """Send a request with the token, unless the path has one."""
        separator = "&" if "?" in path else "?"
        path = path if "token=" in path else f"{path}{separator}token={self.server.token}"
        lines = {"Host": self.host, **{k.replace("_", "-"): v for k, v in headers.items()}}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return self.connect(f"{method} {path} HTTP/1.1\r\n{head}\r\n")

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
        """Return the status, the head and the body of a response."""
        with self.send(path, method, **headers) as connection:
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        return int(head.split()[1]), head.decode(), body


def read_all(connection: socket.socket) -> bytes:
    """Read to the end of a connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture
def site() -> Iterator[Site]:
    """A server that runs."""
    site = Site()
    yield site
    site.close()


def test_the_page_and_its_data_are_for_who_has_the_token(site: Site) -> None:
    """Each has the headers that keep them from other pages, caches and frames."""
    status, head, body = site.get("/")
    assert (status, body) == (200, b"<p>1</p>")
    for text in ("no-store", "no-referrer", "nosniff", "frame-ancestors 'none'", "default-src"):
        assert text in head
    assert "Python" not in head
    assert site.get("/run/r-1/data.json")[2] == b'{"number":1}'
    zipped = site.get("/data.json", Accept_Encoding="gzip, br")
    assert "Content-Encoding: gzip" in zipped[1]
    assert json.loads(gzip.decompress(zipped[2])) == {"number": 1}
    assert site.get("/", "HEAD")[0::2] == (200, b"")
    assert site.source.builds == 1


@pytest.mark.parametrize(
    ("path", "method", "headers", "status", "message"),
    [
        ("/?token=", "GET", {}, 403, "the token"),
        ("/?token=%ff%00\u00e9", "GET", {}, 403, "the token"),
        ("/data.json?token=a&token=b", "GET", {}, 403, "the token"),
        ("/events?token=" + "a" * 43, "GET", {}, 403, "the token"),
        ("/nothing?token=x", "GET", {}, 403, "the token"),
        ("/nothing", "GET", {}, 404, "nothing at this address"),
        ("/run/", "GET", {}, 404, "nothing at this address"),
        ("/run/r-2/", "GET", {}, 404, "nothing at this address"),
        ("/run/r-1/../../etc/passwd", "GET", {}, 404, "nothing at this address"),
        ("/", "GET", {"Host": "evil.example"}, 403, "only"),
        ("/", "GET", {"Host": "127.0.0.1:1"}, 403, "only"),
        ("http://evil.example/", "GET", {}, 403, "only"),
        ("/", "GET", {"Origin": "http://evil.example"}, 403, "its own page"),
        ("/data.json", "GET", {"Origin": "null"}, 403, "its own page"),
        ("/data.json", "GET", {"Sec-Fetch-Site": "same-site"}, 403, "its own page"),
        ("/", "POST", {}, 405, "GET and HEAD"),
        ("/", "OPTIONS", {"Origin": "http://evil.example"}, 405, "GET and HEAD"),
    ],
)
def test_anything_else_is_refused_in_one_line(
    site: Site, path: str, method: str, headers: dict[str, str], status: int, message: str
) -> None:
    """Other names of this machine, other origins, methods and addresses."""
    found, head, body = site.get(path, method, **headers)
    assert found == status
    assert message in body.decode()
    assert body.count(b"\n") == 1
    assert "text/plain" in head
    assert "Access-Control" not in head


def test_localhost_and_its_own_origin_are_answered(site: Site) -> None:
    """So is a link that was opened from a mail, by whoever has the whole of it."""
    own = f"localhost:{site.server.port}"
    assert site.get("/data.json", Host=own, Origin=f"http://{own}")[0] == 200
    assert site.get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


def test_viewers_hear_of_every_version_and_its_state(site: Site) -> None:
    """What is built for one is built for all; one that leaves is forgotten at once."""
    viewers = [site.send("/events") for _ in range(5)]
    wait_until(lambda: all(b'"version": 1' in peek(v) for v in viewers), "the first version")
    wait_until(lambda: site.document.stream_count == 5, "five streams")
    site.source.number = 2
    wait_until(lambda: all(b'"version": 2' in peek(v) for v in viewers), "the second version")
    site.document.status = Status("the hosts are out of reach", 5.0)
    wait_until(lambda: b"out of reach" in peek(viewers[0]), "the status")
    assert site.source.builds == 2
    assert peek(viewers[0]).count(b"retry:") == 1
    for viewer in viewers:
        viewer.close()
    wait_until(lambda: site.document.stream_count == 0, "no stream")


def test_nothing_is_built_while_nobody_looks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next viewer has what is new by then."""
    monkeypatch.setattr("runner.workflows.live.document.STALE_S", 0.0)
    assert site.get("/data.json")[2] == b'{"number":1}'
    monkeypatch.setattr("runner.workflows.live.document.VIEWED_S", 0.0)
    site.source.number = 2
    for _ in range(3):
        site.document.refresh()
    assert site.source.builds == 1
    monkeypatch.setattr("runner.workflows.live.document.VIEWED_S", 60.0)
    assert site.get("/data.json")[2] == b'{"number":2}'


def test_a_page_that_cannot_be_built_says_why(site: Site) -> None:
    """In one line; later versions are built again."""
    site.source.number = -1
    status, _, body = site.get("/")
    assert (status, body) == (503, b"no page yet: ValueError: below 0\n")
    site.source.number = 1
    wait_until(lambda: site.get("/")[0] == 200, "the page")


def test_slow_and_silent_clients_hold_up_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has a deadline as a whole and a greatest size; other clients are answered."""
    monkeypatch.setattr(page_server, "HEAD_TIMEOUT_S", 1.0)
    silent, slow = site.connect(), site.connect("GET / HT")
    began = time.monotonic()
    large = site.connect(f"GET / HTTP/1.1\r\nX: {'x' * page_server.MAX_HEAD}")
    assert site.get("/")[0] == 200
    ended = [read_all(connection) for connection in (silent, slow, large)]
    assert all(b"408" in answer for answer in ended)
    assert time.monotonic() - began < 15


def test_connections_and_streams_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond hears of it at once; the others are served."""
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 2)
    streams = [site.send("/events") for _ in range(2)]
    wait_until(lambda: site.document.stream_count == 2, "two streams")
    assert site.get("/events")[0] == 503
    idle = [site.connect() for _ in range(page_server.MAX_CONNECTIONS + 1)]
    answer = b""
    for connection in reversed(idle):  # the last ones are refused
        if answer := peek(connection):
            break
    assert b"503" in answer
    for connection in idle:
        connection.close()
    wait_until(lambda: site.get("/")[0] == 200, "an answer")
    streams.pop().close()
    wait_until(lambda: site.document.stream_count == 1, "one stream less")
    streams.append(site.send("/events"))
    wait_until(lambda: site.document.stream_count == 2, "another stream")


def test_too_many_open_files_keep_no_core_busy(site: Site) -> None:
    """A connection that cannot be accepted waits, and is answered once there is room."""
    with contextlib.ExitStack() as filled, socket.socket() as waiting:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, limits[1]))
        filled.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with contextlib.suppress(OSError):
            while True:
                filled.callback(os.close, os.dup(waiting.fileno()))
        waiting.connect(("127.0.0.1", site.server.port))
        began, used = time.monotonic(), time.process_time()
        time.sleep(1.0)
        assert time.process_time() - used < 0.15 * (time.monotonic() - began)
    assert site.get("/")[0] == 200


def test_a_viewer_that_stops_reading_is_dropped(site: Site) -> None:
    """Its buffer takes what it can; nothing waits for it."""
    viewer = site.send("/events")
    wait_until(lambda: site.document.stream_count == 1, "the stream")
    words = 0

    def is_dropped() -> bool:
        nonlocal words
        words += 1
        site.document.status = Status(f"{words} " + "x" * 200_000)
        return not site.document.stream_count

    wait_until(is_dropped, "the end of the stream", 60)
    assert viewer.fileno() > 0


def test_a_taken_port_is_said_with_what_to_do(site: Site) -> None:
    """In one line, as anything that cannot be made ready."""
    with pytest.raises(NotReady, match=f"port {site.server.port} of 127.0.0.1 is taken"):
        PageServer(site.server.port, site.streams)


def peek(connection: socket.socket) -> bytes:
    """What came on a connection so far, without taking it."""
    try:
        return connection.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""
