"""Table of the comparison, in docs/benchmarks.md, made from its record.

python -m benchmarks.peers.tables
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.results import Record, Taking, Values, load

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- peers: made by benchmarks/peers/tables.py -->", "<!-- end of peers -->"
WIDTH = 118
NOT_PLAYED = "-"


@dataclass(frozen=True)
class Column:
    """A column of the table: a value of one scene.

    Attributes:
        scene: The scene.
        title: Its title.
        key: The value's name in a measurement.
        digits: Of its numbers.
    """

    scene: str
    title: str
    key: str = "ranks_gone"
    digits: int = 1


def columns(record: Record) -> list[Column]:
    """Return the columns of the scenes that were played."""
    settings = record.settings
    found = [
        Column("launch", "launch", "first", 2),
        Column("failure", "a rank fails"),
        Column("interrupt", "Ctrl-C"),
        Column("kill", "launcher killed"),
        Column("unplug", "host unplugged"),
        Column("lines", f"{settings['nodes'] * settings['lines']:,} lines", "seconds"),
        Column("many", f"`true` on {settings['many']} hosts", "seconds", 2),
    ]
    played = {each.scene for each in record.measurements}
    return [column for column in found if column.scene in played]


def docs_part(record: Record) -> str:
    """Return what docs/benchmarks.md shows: what was measured on, who took part, the table."""
    machine, shown = record.machine, columns(record)
    rows = [
        [
            each.name,
            each.starts,
            *(cell(record.of(column.scene, each.name), column) for column in shown),
        ]
        for each in record.launchers
        if not each.skipped
    ]
    head = ["launcher", "starts", *(column.title for column in shown)]
    watched = ", ".join(
        f"{limit:g} s ({column.title})"
        for column in shown
        if (limit := record.settings["limits"].get(column.scene))
    )
    rounds = ", ".join(f"{rounds_of(record, column)} ({column.title})" for column in shown)
    hosts = f"{machine['cores']} cores and {machine['memory_gib']} GiB that are all hosts"
    load = f"load {machine['load']:.1f} at the start"
    texts = [
        f"{record.date}, {hosts}, Python {machine['python']}, torch {machine['torch']}, {load}.",
        f"Watched for {watched}.",
        f"Rounds: {rounds}.",
        f"Versions: {'; '.join(dict.fromkeys(map(version, record.launchers)))}.",
    ]
    notes = "\n\n".join(
        textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) for text in texts
    )
    return f"{markdown(head, rows)}\n{notes}\n"


def version(taking: Taking) -> str:
    """Return a launcher's version with its name, or why it took no part."""
    name = taking.name.partition(",")[0]
    if taking.skipped:
        return f"{name} took no part ({taking.skipped})"
    return taking.version if taking.version[:1].isalpha() else f"{name} {taking.version}"


def rounds_of(record: Record, column: Column) -> int:
    """Return how often a scene was played."""
    return max(each.round for each in record.measurements if each.scene == column.scene)


def cell(rounds: Sequence[Values], column: Column) -> str:
    """Return the median of the rounds that have the value, and what happened in the others.

    "in 2 of 3 rounds" is part of it where the rounds differ.
    """
    if not rounds:
        return NOT_PLAYED
    found = numbers(rounds, column.key)
    wrong = [each["error"].partition("\n")[0] for each in rounds if "error" in each]
    missing = len(rounds) - len(found) - len(wrong)
    left = f"{max(numbers(rounds, 'ranks'), default=0):.0f} ranks left"
    parts = [f"{statistics.median(found):,.{column.digits}f}"] if found else []
    for what, count in ((left, missing), (wrong[0] if wrong else "", len(wrong))):
        if count and what:
            parts.append(
                what if count == len(rounds) else f"{what} in {count} of {len(rounds)} rounds"
            )
    torn = max((each["lines"] - each["whole"] for each in rounds if "whole" in each), default=0)
    return "; ".join([*parts, *([f"{torn:,} torn"] if torn else [])])


def numbers(rounds: Sequence[Values], key: str) -> list[float]:
    """Return a value of all rounds where it is a number."""
    return [each[key] for each in rounds if each.get(key) is not None]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def replaced(page: str, text: str) -> str:
    """Return a page with a text between its marks."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def write(record: Record) -> None:
    """Write the table into its page."""
    path = ROOT / "docs/benchmarks.md"
    path.write_text(replaced(path.read_text(), docs_part(record)))


if __name__ == "__main__":
    write(load())
