"""Reports of `collectives.py`, without torch: sizes, bus factors, schedule, verdicts, tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median
from typing import Any, Optional, Sequence

SLOW_BELOW = 0.6  # share of the others' median bandwidth; equal links differ by less in practice
LARGEST_MATRIX = 16  # nodes; a larger matrix fits no screen
UNITS = ("", "K", "M", "G", "T")


def parse_size(text: str) -> int:
    """Read a number of bytes: `4096`, `64K`, `1M`, `2GiB`, in powers of 1024.

    Raises:
        ValueError: It is no whole number above zero with such a unit.
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:I?B)?", text.strip().upper())
    if not found or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no size such as 4096, 64K or 1G")
    return int(found[1]) << 10 * UNITS.index(found[2])


def show_size(count: int) -> str:
    """Write a number of bytes in the largest unit that leaves it whole: `64K`, `1025`."""
    unit = 0
    while unit + 1 < len(UNITS) and count and count % 1024 == 0:
        count, unit = count // 1024, unit + 1
    return f"{count}{UNITS[unit]}"


def message_sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """Return the sizes from the smallest on, each `factor` times the one before."""
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return sizes


def bus_factor(operation: str, ranks: int) -> float:
    """Return what algorithm bandwidth is multiplied by to get bus bandwidth.

    As in doc/PERFORMANCE.md of NVIDIA's nccl-tests. There, the size of an operation is that of the
    largest buffer of a rank: for all_gather what it gets, for reduce_scatter what it gives.
    """
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0  # broadcast, reduce


def tournament(players: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs in which everyone meets everyone once.

    The circle method: one stays, the others move on by a seat; with an odd number one pauses.
    """
    seats: list[Optional[int]] = [*range(players), *([None] if players % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        opposite = zip(seats[: len(seats) // 2], reversed(seats))
        pairs = [(a, b) for a, b in opposite if a is not None and b is not None]
        rounds.append([(min(pair), max(pair)) for pair in pairs])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


@dataclass(frozen=True)
class Share:
    """A node's bandwidth with the others, as a share of the median among those others."""

    name: str
    sends: float  # the median over all receivers, in bytes per second
    receives: float
    sends_share: Optional[float]  # of the median of all links between other nodes, if any
    receives_share: Optional[float]

    def verdict(self) -> str:
        """Return a sentence if the node is slow; "" if it is not, or if that is unknown."""
        sends, receives = self.sends_share, self.receives_share
        if sends is None or receives is None or min(sends, receives) >= SLOW_BELOW:
            return ""
        text = f"{self.name} is slow: {min(sends, receives):.2g} of the others' median"
        if max(sends, receives) >= SLOW_BELOW:
            text += ", only in what it " + ("sends" if sends < receives else "receives")
        return text


def compare_nodes(names: Sequence[str], bandwidth: Sequence[Sequence[float]]) -> list[Share]:
    """Judge each node by its links against all links that do not touch it.

    `bandwidth[i][j]` is what i sends to j, in bytes per second. Medians keep a slow node from
    making its peers look slow. This takes three nodes, fewer than half of them slow.
    """
    everyone = range(len(names))
    shares = []
    for node, name in enumerate(names):
        others = [other for other in everyone if other != node]
        sends = median([bandwidth[node][other] for other in others])
        receives = median([bandwidth[other][node] for other in others])
        rest = [bandwidth[a][b] for a in others for b in others if a != b]
        usual = median(rest) if rest else 0
        parts = (sends / usual, receives / usual) if usual else (None, None)
        shares.append(Share(name, sends, receives, *parts))
    return shares


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns: the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    pads = [str.ljust] + [str.rjust] * (len(widths) - 1)
    cells = ([pad(cell, width) for pad, cell, width in zip(pads, line, widths)] for line in lines)
    return ["  ".join(line).rstrip() for line in cells]


def pairs_tables(names: list[str], matrix: dict[str, list[list[float]]], message: str) -> list[str]:
    """Return the matrices where they fit, a line per node, and the slow nodes."""
    if len(names) == 1:
        return ["pairs: one node, so there is no pair of nodes to measure", ""]
    lines = [
        f"pairs: bandwidth in GB/s, the row sends {message} to the column",
        *square(names, matrix["bandwidth"], 1e-9, 3),
        "",
        "pairs: latency in us, half a round trip",
        *square(names, matrix["latency"], 1e6, 1),
        "",
    ]
    shares = compare_nodes(names, matrix["bandwidth"])
    rows = []
    for share in shares:
        sends, receives = f"{share.sends / 1e9:.3f}", f"{share.receives / 1e9:.3f}"
        sends_part, receives_part = show_part(share.sends_share), show_part(share.receives_share)
        rows.append((share.name, sends, sends_part, receives, receives_part))
    header = ("node, medians", "sends GB/s", "of others'", "receives GB/s", "of others'")
    lines += [*table(header, rows), ""]
    if shares[0].sends_share is None:
        return [*lines, "two nodes: a third is needed to tell which of them is slow"]
    return lines + ([text for text in map(Share.verdict, shares) if text] or ["no node is slow"])


def show_part(part: Optional[float]) -> str:
    """Return a share of the others' median; a share above 1 says nothing about this node."""
    if part is None:
        return "-"
    return f"{part:.2f}" if part < 1 else "1+"


def square(names: list[str], values: list[list[float]], scale: float, digits: int) -> list[str]:
    """Return a matrix of all nodes, if it fits a screen."""
    if len(names) > LARGEST_MATRIX:
        return [f"{len(names)} nodes: only --json has all of them"]
    rows = [
        [name, *("-" if a == b else f"{value * scale:.{digits}f}" for b, value in enumerate(row))]
        for a, (name, row) in enumerate(zip(names, values))
    ]
    return table(["", *names], rows)


def smoke_table(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line per node. A node that is late to every step has the shortest all_reduce."""
    rows = []
    for node in nodes:
        rate, time = f"{node['steps_per_second']:.1f}", f"{node['all_reduce'] * 1e3:.2f}"
        rows.append((node["node"], rate, time, str(node["wrong"])))
    return table(("node", "steps/s", "all_reduce ms", "wrong results"), rows)
