"""Facts about etcd: from the program's output, and from an endpoint."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from runner.core.model.facts import EndpointReply, EtcdFacts
from runner.host.facts import etcd

PRINTED = """\
etcd Version: 3.4.23
Git SHA: Not provided (use ./build instead of go build)
Go Version: go1.19.8
Go OS/Arch: linux/amd64
"""
VERSION = '{"etcdserver":"3.4.23","etcdcluster":"3.4.0"}'
NO_V2 = "404 page not found\n"


def test_the_version_that_etcd_prints() -> None:
    """As Debian's does; another program's is none."""
    assert etcd.parse_version(PRINTED) == "3.4.23"
    assert etcd.parse_version("usage: etcd [flags]") == ""


@pytest.mark.parametrize(
    ("version", "speaks"),
    [("3.4.23", True), ("3.5.17", True), ("3.6.0", False), ("3.10.1", False), ("", True)],
)
def test_which_have_the_v2_api(version: str, speaks: bool) -> None:
    """Up to 3.5; who does not tell its version may."""
    assert EtcdFacts("/usr/bin/etcd", version).supports_v2 is speaks


@contextlib.contextmanager
def answering(*answers: tuple[int, str]) -> Iterator[str]:
    """A server that gives those answers, one after the other; its HOST:PORT."""
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = left.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (
            ((200, VERSION), (200, '{"action":"get","node":{"dir":true}}')),
            EndpointReply(version="3.4.23", has_v2=True),
        ),
        (((200, VERSION), (401, "{}")), EndpointReply(version="3.4.23", has_v2=True)),
        (((200, VERSION), (404, NO_V2)), EndpointReply(version="3.4.23", has_v2=False)),
        (((404, "nope"),), EndpointReply("what answers there is not etcd (GET /version: 404)")),
        (((200, "[1]"),), EndpointReply("what answers there is not etcd (GET /version: 200)")),
    ],
)
def test_how_an_endpoint_answers(
    answers: tuple[tuple[int, str], ...], found: EndpointReply
) -> None:
    """The v2 API is there unless nobody knows its path; it may want a password."""
    with answering(*answers) as endpoint:
        assert etcd.query_endpoint(endpoint) == found


def test_an_endpoint_where_nobody_listens() -> None:
    """The kernel's own words."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert etcd.query_endpoint(f"127.0.0.1:{port}") == EndpointReply("Connection refused")


def test_an_endpoint_that_says_nothing() -> None:
    """The connection is taken, and that is all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert etcd.query_endpoint(f"127.0.0.1:{port}", 0.05) == EndpointReply(
            "no answer within 0.05 s"
        )


def test_an_endpoint_that_speaks_something_else() -> None:
    """An sshd, say."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as taken:
                taken.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
                taken.recv(1024)

        thread = threading.Thread(target=greet)
        thread.start()
        found = etcd.query_endpoint(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert found == EndpointReply("what answers there does not speak HTTP")
