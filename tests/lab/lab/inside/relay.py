"""A slow line: passes frames between two interfaces; those of the first come late or never.

Usage: relay.py FIRST SECOND DELAY_MS LOSS_PCT

`tc netem` on a host's own interface would do the same, but many kernels are built without it.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ETH_P_ALL = 3
SOL_PACKET = 263
# Frames between namespaces are larger than the MTU and bear no checksum yet: this header says so.
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
LARGEST_FRAME = 1 << 17
BUFFER = 8 << 20


def open_interface(name: str) -> socket.socket:
    """Opens an interface for all frames that come in on it."""
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    line.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    line.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    line.bind((name, ETH_P_ALL))
    line.setblocking(False)
    return line


def receive(line: socket.socket) -> Iterator[bytes]:
    """Yields the frames that wait at an interface."""
    while True:
        try:
            yield line.recv(LARGEST_FRAME)
        except OSError:  # none is left, or the cable was pulled
            return


def send(line: socket.socket, frame: bytes) -> None:
    """Sends a frame, or loses it, as a cable would."""
    try:
        line.send(frame)
    except OSError:
        return


def relay(first: socket.socket, second: socket.socket, delay_s: float, loss: float) -> None:
    """Passes frames both ways, for ever."""
    late: deque[tuple[float, bytes]] = deque()
    while True:
        patience = max(0.0, late[0][0] - time.monotonic()) if late else None
        select.select([first, second], [], [], patience)
        for frame in receive(second):
            send(first, frame)
        due = time.monotonic() + delay_s
        for frame in receive(first):
            if random.random() >= loss:  # noqa: S311 - no secret depends on it
                late.append((due, frame))
        while late and late[0][0] <= time.monotonic():
            send(second, late.popleft()[1])


def main() -> None:
    """Opens both interfaces, says so, and relays until killed."""
    first, second = (open_interface(name) for name in sys.argv[1:3])
    print("ready", flush=True)
    relay(first, second, float(sys.argv[3]) / 1000, float(sys.argv[4]) / 100)


if __name__ == "__main__":
    main()
