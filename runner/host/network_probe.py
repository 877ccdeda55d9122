"""Network probe: the part of one host, which listens for the others and dials them, in a child.

Who is dialled proves by a token that it is the node that was meant. Then packets of full size are
sent, which a smaller MTU on the way swallows while small ones pass.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import socket
import threading
import time
from concurrent import futures
from typing import Iterable, Iterator, Sequence

from runner.core.wire.facts import Outcome, ProbeResult, Target
from runner.host.facts import ports

MAX_CONCURRENT = 32  # on a slow line more of them would make each other look stalled
CONNECT_TIMEOUT_S = 3.5  # SYNs go out after 0, 1 and 3 s; the kernel waits 3 s for a neighbour
ANSWER_TIMEOUT_S = 2.5
STRANGER_TIMEOUT_S = 2.0  # for who connects to say something
PAD_BYTES = 28 << 10  # enough for packets of full size, also with jumbo frames
NONCE_BYTES = 16
REPLY_BYTES = 32 + 64  # the proof, and the name of the node, filled up
COMPLETE = b"complete"
BACKLOG = 128
POLL_S = 0.1
_OUTCOME_BY_ERRNO = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ETIMEDOUT: Outcome.TIMED_OUT,
    errno.ECONNRESET: Outcome.RESET,
    errno.EPIPE: Outcome.RESET,
}


def dial_all(node: str, targets: Sequence[Target], token: bytes) -> Iterator[ProbeResult]:
    """Dial every target but `node`, our own, and yield what became of each as it is known.

    The targets after our own come first, or all hosts would begin with the same.
    """
    start = next((index for index, target in enumerate(targets) if target.node == node), 0)
    others = [target for target in (*targets[start:], *targets[:start]) if target.node != node]
    with futures.ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        dials = [pool.submit(dial, target, token) for target in others]
        for done in futures.as_completed(dials):
            yield done.result()


def dial(target: Target, token: bytes) -> ProbeResult:
    try:
        sock = socket.create_connection((target.address, target.port), CONNECT_TIMEOUT_S)
    except OSError as error:
        return _failed(target, error, Outcome.TIMED_OUT)
    with sock:
        silent = Outcome.NO_GREETING
        try:
            sock.settimeout(ANSWER_TIMEOUT_S)
            nonce = os.urandom(NONCE_BYTES)
            began = time.monotonic()
            sock.sendall(nonce)
            reply = _receive(sock, REPLY_BYTES)
            rtt_s = time.monotonic() - began
            name = reply[32:].rstrip(b"\0").decode(errors="replace")
            if not hmac.compare_digest(reply, _reply(name, nonce, token)):
                return ProbeResult(target, Outcome.WRONG_PEER)
            if name != target.node:
                return ProbeResult(target, Outcome.WRONG_PEER, detail=name)
            silent = Outcome.STALLED
            sock.sendall(bytes(PAD_BYTES))
            is_complete = _receive(sock, len(COMPLETE)) == COMPLETE
        except OSError as error:
            return _failed(target, error, silent)
    return ProbeResult(target, Outcome.REACHED if is_complete else Outcome.RESET, rtt_s)


def _failed(target: Target, error: OSError, silent: Outcome) -> ProbeResult:
    """Return a failure; a time-out is that which the step is known by."""
    if isinstance(error, socket.timeout):
        return ProbeResult(target, silent)
    outcome = _OUTCOME_BY_ERRNO.get(error.errno or 0, Outcome.FAILED)
    detail = error.strerror or str(error) if outcome is Outcome.FAILED else ""
    return ProbeResult(target, outcome, detail=detail)


def _receive(sock: socket.socket, size: int) -> bytes:
    """Return so many bytes; fewer at the end of a connection, or of the time if some have come."""
    data = b""
    while len(data) < size:
        try:
            part = sock.recv(size - len(data))
        except OSError as error:
            if not data or not isinstance(error, socket.timeout):
                raise
            break
        if not part:
            break
        data += part
    return data


def _reply(name: str, nonce: bytes, token: bytes) -> bytes:
    field = name.encode()[:64].ljust(64, b"\0")
    return hmac.new(token, nonce + field, hashlib.sha256).digest() + field


def listen(address: str, allowed: Iterable[int]) -> socket.socket:
    """Return a listener at the first of these ports that is free, else at any of that address.

    A port that a run has reserved is free until its store listens there.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in allowed:
        with contextlib.suppress(OSError):
            return _listen(family, address, port)
    return _listen(family, address, 0)


def _listen(family: int, address: str, port: int) -> socket.socket:
    sock = ports.bind(family, address, port, shared=bool(port))
    try:
        sock.listen(BACKLOG)
    except OSError:  # another listens there
        sock.close()
        raise
    return sock


def serve(listener: socket.socket, node: str, token: bytes, parent_pid: int) -> None:
    """Answer all who come, until the parent ends; who says nothing is dropped."""
    listener.settimeout(POLL_S)
    while os.getppid() == parent_pid:
        with contextlib.suppress(socket.timeout):
            sock, _ = listener.accept()
            threading.Thread(target=_answer, args=(sock, node, token), daemon=True).start()


def _answer(sock: socket.socket, node: str, token: bytes) -> None:
    with sock:
        try:
            sock.settimeout(STRANGER_TIMEOUT_S)
            nonce = _receive(sock, NONCE_BYTES)
            if len(nonce) < NONCE_BYTES:
                return
            sock.sendall(_reply(node, nonce, token))
            sock.settimeout(2 * ANSWER_TIMEOUT_S)  # who dials is to find out first
            if len(_receive(sock, PAD_BYTES)) == PAD_BYTES:
                sock.sendall(COMPLETE)
        except OSError:
            return
