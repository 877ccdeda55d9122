"""Tables of the comparison, in docs/benchmarks.md, made from its record.

python -m benchmarks.peers.tables
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.results import Record, Values, load

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- peers: made by benchmarks/peers/tables.py -->", "<!-- end of peers -->"
NEVER = float("inf")
LEFT = ("ranks", "processes", "processes_there")
"""What a cell may count."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its title.
        key: The value's name in a measurement.
        otherwise: What a cell shows where the value is None in every round.
        digits: Of its numbers.
    """

    title: str
    key: str
    otherwise: str = ""
    digits: int = 1


@dataclass(frozen=True)
class Table:
    """A scene's table.

    Attributes:
        title: What happens.
        columns: Its columns; the first that is not empty decides the order of its rows.
    """

    title: str
    columns: tuple[Column, ...]


def tables(record: Record) -> dict[str, Table]:
    """Return a table for each scene."""
    settings, limits = record.settings, record.settings["limits"]
    printed = f"{settings['nodes'] * settings['lines']:,}"
    ends = Column("the launcher ends, s", "ended", "not at all")
    ranks = Column("ranks and their children gone, s", "ranks_gone", "{ranks} ranks left")
    gone = Column("all processes gone, s", "processes_gone", "{processes} processes left")
    watched = {scene: f" (watched for {limit:g} s)" for scene, limit in limits.items()}
    cpu = Column("CPU s on the launcher's host", "cpu")
    return {
        "launch": Table(
            f"Launch on {settings['nodes']} nodes: from the command to the last rank's first line",
            (Column("s", "first", digits=2), cpu),
        ),
        "failure": Table(
            f"One rank fails, the others sleep{watched['failure']}",
            (ranks, gone, ends),
        ),
        "interrupt": Table(
            "Ctrl-C, while ranks ignore signals and have a child in a session of its own"
            f"{watched['interrupt']}",
            (ranks, gone, ends),
        ),
        "kill": Table(
            f"`kill -9` of the launcher, with the same ranks{watched['kill']}",
            (ranks, gone),
        ),
        "unplug": Table(
            f"The last node is unplugged while ranks sleep{watched['unplug']}",
            (
                Column("other nodes: ranks gone, s", "ranks_gone", "{ranks} ranks left"),
                Column("all processes gone, s", "processes_gone", "{processes} processes left"),
                Column("the launcher says something, s", "said", "nothing"),
                ends,
                Column("unplugged node: rank gone, s", "ranks_gone_there", "left"),
                Column("all gone, s", "processes_gone_there", "{processes_there} processes left"),
            ),
        ),
        "lines": Table(
            f"{printed} lines of 100 bytes by {settings['nodes']} ranks, into a pipe",
            (Column("s", "seconds"), cpu, Column("torn or lost lines", "torn", digits=0)),
        ),
        "many": Table(
            f"`true` on {settings['many']} hosts",
            (Column("s", "seconds", digits=2), cpu),
        ),
    }


def docs_part(record: Record) -> str:
    """Return what docs/benchmarks.md shows: who took part, and a table for each scene."""
    machine = record.machine
    what = f"{machine['cores']} cores and {machine['memory_gib']} GiB that are all hosts"
    load = f"load {machine['load']:.1f} when it began"
    parts = [
        f"{record.date}, {what}, Python {machine['python']}, torch {machine['torch']}, {load}:\n",
        markdown(
            ["launcher", "version", "starts on a host"],
            [[each.name, each.version or each.skipped, each.starts] for each in record.launchers],
        ),
    ]
    parts += [
        scene_part(record, scene, table)
        for scene, table in tables(record).items()
        if scenes_of(record, scene)
    ]
    return "\n".join(parts)


def scene_part(record: Record, scene: str, table: Table) -> str:
    """Return a scene's title and table: the quickest first."""
    taken = {each.name: record.of(scene, each.name) for each in record.launchers}
    taken = {name: rounds for name, rounds in taken.items() if rounds}
    key = table.columns[0].key
    names = sorted(taken, key=lambda name: rank(taken[name], key))
    rows = [[name, *(span(taken[name], column) for column in table.columns)] for name in names]
    title = f"**{table.title}**; rounds: {max(map(len, taken.values()))}\n\n"
    return title + markdown(["launcher", *(column.title for column in table.columns)], rows)


def scenes_of(record: Record, scene: str) -> bool:
    """Tell whether a scene was played."""
    return any(each.scene == scene for each in record.measurements)


def numbers(rounds: Sequence[Values], key: str) -> list[float]:
    """Return a value of all rounds where it is a number, in order."""
    if key == "torn":
        return sorted(each["lines"] - each["whole"] for each in rounds if "whole" in each)
    return sorted(each[key] for each in rounds if each.get(key) is not None)


def errors(rounds: Sequence[Values]) -> list[str]:
    """Return the first lines of what went wrong."""
    return [each["error"].partition("\n")[0] for each in rounds if "error" in each]


def rank(rounds: Sequence[Values], key: str) -> tuple[float, float]:
    """Return what rows are ordered by: the median if most rounds have it; then what is left."""
    found = numbers(rounds, key)
    if 2 * len(found) <= len(rounds):
        return NEVER, max(numbers(rounds, key.removesuffix("_gone")), default=NEVER)
    return statistics.median(found), 0


def span(rounds: Sequence[Values], column: Column) -> str:
    """Return a cell: the median of the rounds that have the value, and how many have not.

    "not in 2 of 3 rounds" is part of it where the rounds differ.
    """
    if not rounds:
        return ""
    found, wrong = numbers(rounds, column.key), errors(rounds)
    missing = len(rounds) - len(found) - len(wrong)
    most = {key: max(numbers(rounds, key), default=0) for key in LEFT}
    otherwise = column.otherwise.format_map({key: f"{count:.0f}" for key, count in most.items()})
    parts = [_span(found, column.digits)] if found else []
    for what, count in ((otherwise, missing), (wrong[0] if wrong else "", len(wrong))):
        if count and what:
            parts.append(what if count == len(rounds) else f"{what} in {count} of {len(rounds)}")
    return "; ".join(parts)


def _span(found: Sequence[float], digits: int) -> str:
    median, least, most = (
        f"{x:,.{digits}f}" for x in (statistics.median(found), found[0], found[-1])
    )
    return median if least == most else f"{median} ({least} to {most})"


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
    """Write the tables into their page."""
    path = ROOT / "docs/benchmarks.md"
    path.write_text(replaced(path.read_text(), docs_part(record)))


if __name__ == "__main__":
    write(load())
