"""Store watch: whether the ranks here train with those of the master, as their connections show.

A program under `entry: plain` may set MASTER_ADDR to localhost, or start a launcher that does: then
each node trains alone, and on each of them torch's store is served, for that node only.
"""

from __future__ import annotations

import contextlib
import glob
import math
import re
import socket
import struct
import time
from typing import Callable, Collection, Optional

from runner.core.wire.order import Order
from runner.host.process import procfs, subreaper

STORE_THREAD = "pt_tcpstore"  # as torch names the thread that serves a store; old ones do not
FIRST_GAP_S = 0.5  # of the time between two looks
GROWTH = 1.06
LOOPBACK = re.compile(r"(\w{16}FFFF0000)?\w{6}7F")  # 127.x, as `kernel_form`


class StoreWatch:
    """Looks at the ranks of a node that is not the master, where no torchrun of ours goes there."""

    def __init__(self, order: Order) -> None:
        self.looks_apart = 0  # at which a store was served here; 0 once anybody has met others
        self._gap_s = FIRST_GAP_S
        self._next_at = math.inf
        hub = order.hub
        if hub is not None and hub.node != order.node and not order.launcher:
            with contextlib.suppress(OSError):  # a name that is not known here
                self._master = kernel_form(hub.addr.partition("%")[0])
                self._next_at = 0.0

    def tick(self, container_pids: Callable[[], Collection[int]]) -> None:
        if time.monotonic() < self._next_at:
            return
        has_met = look({*subreaper.own_descendants(), *container_pids()}, self._master)
        self.looks_apart = 0 if has_met else self.looks_apart + (has_met is False)
        self._gap_s *= GROWTH
        self._next_at = math.inf if has_met else time.monotonic() + self._gap_s


def kernel_form(address: str) -> str:
    """Return an address as /proc/net/tcp shows it; in tcp6 one of IPv4 has more before it."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))


def look(pids: Collection[int], master: str) -> Optional[bool]:
    """Return whether processes that serve a store have met others; None if they serve none.

    They have where it has a client from elsewhere, or one of them is connected to the master.
    """
    names = [name for pid in pids for name in glob.glob(f"/proc/{pid}/task/*/comm")]
    threads = [name for name in names if procfs.read_text(name).startswith(STORE_THREAD)]
    servers = [name.split("/")[2] for name in threads]
    if not servers:
        return None
    served = {target for pid in servers for _, target in procfs.fd_links(pid)}
    held = {target for pid in pids for _, target in procfs.fd_links(pid)}
    tables = [procfs.read_text(f"/proc/{servers[0]}/net/{name}") for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    ports = {row[1][-4:] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in served}
    held_rows = (row for row in rows if row[3] == "01" and f"socket:[{row[9]}]" in held)
    for own, port, peer in ((row[1][:-5], row[1][-4:], row[2][:-5]) for row in held_rows):
        is_inside = peer == own or LOOPBACK.fullmatch(peer)
        if not is_inside and (port in ports or peer.endswith(master)):
            return True
    return False if ports else None  # of another user, they are hidden
