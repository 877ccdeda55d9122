"""Unit tests for what the fork server makes of the other end of a shim's connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from runner.host.ranks import shim
from runner.host.ranks.preload import fork_server
from tests.lab.waiting import PATIENCE

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A shim's connection as the server has it, and its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


def test_shim_and_server_agree() -> None:
    """They are files of their own on a host, so that neither imports the other."""
    assert shim.FORWARDED_SIGNALS == fork_server.SHIM_SIGNALS
    assert shim.FORK_SERVER == fork_server.SERVER_VARIABLE


def test_a_shim_that_has_waited_for_too_long_is_gone(pair: Pair) -> None:
    """One that says nothing is not."""
    ours, theirs = pair
    ours.settimeout(5 * PATIENCE)
    assert not fork_server.is_gone(ours)
    theirs.send(b"x")
    assert not fork_server.is_gone(ours)
    assert fork_server.send(ours, {})
    ours.recv(1)
    theirs.close()
    assert fork_server.is_gone(ours)
    assert not fork_server.send(ours, {})


def test_descriptors_of_a_request_that_breaks_off_are_closed(pair: Pair) -> None:
    """The next ranks are to have none of them."""
    ours, theirs = pair
    reader, writer = os.pipe()
    socket.send_fds(theirs, [(100).to_bytes(4, "big")], [writer] * 3)
    os.close(writer)
    theirs.close()
    with pytest.raises(ConnectionError):
        fork_server.receive(ours)
    assert os.read(reader, 1) == b""  # nobody can write
    os.close(reader)
