"""What the checks found, as a table: equal findings of many nodes as one."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.core.finding import Finding, Level
from runner.core.text import readable
from runner.ui.names import fold_names

if TYPE_CHECKING:
    from rich.table import Table

COLOURS = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.FINE: "green"}
WIDTH = 100
"""Of a table that goes into a pipe."""

Found = Mapping[str, Sequence[Finding]]


def errors(found: Found) -> list[Finding]:
    """Return what a launch refuses for."""
    return [one for those in found.values() for one in those if one.level is Level.ERROR]


def warnings(found: Found) -> list[str]:
    """Return what may go wrong, a sentence each, equal ones of many nodes as one."""
    return [
        f"{nodes}: {what}"
        for those in found.values()
        for level, nodes, what, _ in _folded(those)
        if level is Level.WARNING
    ]


def as_data(found: Found) -> list[dict[str, Any]]:
    """Return it as a program can read it: a row per finding."""
    return [
        {
            "check": check,
            "level": one.level.value,
            "node": one.node,
            "what": one.what,
            "hint": one.hint,
        }
        for check, those in found.items()
        for one in those
    ]


def render(found: Found, cluster: str) -> str:
    """Return the table, and the sum of it."""
    from rich.table import Table  # noqa: PLC0415 (a launch that is well needs no Rich)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(max_width=30, overflow="fold")
    table.add_column(overflow="fold")
    for check, those in found.items():
        for level, nodes, what, hint in _folded(those):
            text = Text(readable(what))
            for line in hint.splitlines():
                text.append(f"\n→ {readable(line)}", style="dim")
            table.add_row(check, Text(level.value, COLOURS[level]), nodes, text)
    return _printed(table) + _sum(found, cluster)


def _folded(those: Sequence[Finding]) -> list[tuple[Level, str, str, str]]:
    """Return findings that are equal but for their nodes as one, the bad ones first."""
    groups: dict[tuple[Level, str, str], list[str]] = {}
    for one in sorted(those, key=lambda one: list(Level).index(one.level)):
        texts = (one.what, one.hint)
        what, hint = (t.replace(f".nodes.{one.node}.", ".nodes.NODE.") for t in texts)
        groups.setdefault((one.level, what, hint), []).append(one.node)
    return [
        (level, fold_names(name for name in nodes if name) or "all", what, hint)
        for (level, what, hint), nodes in groups.items()
    ]


def _printed(table: Table) -> str:
    from rich.console import Console  # noqa: PLC0415

    lively = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    width = os.get_terminal_size(sys.stdout.fileno()).columns if lively else WIDTH
    console = Console(
        file=io.StringIO(),
        width=width or WIDTH,
        force_terminal=lively,
        color_system="standard" if lively and "NO_COLOR" not in os.environ else None,
        legacy_windows=False,
        highlight=False,
    )
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _sum(found: Found, cluster: str) -> str:
    counts = dict.fromkeys(Level, 0)
    for those in found.values():
        for level, *_ in _folded(those):
            counts[level] += 1
    bad = [
        f"{counts[level]} {level.value}{'' if counts[level] == 1 else 's'}"
        for level in (Level.ERROR, Level.WARNING)
        if counts[level]
    ]
    if not bad:
        return f"{cluster}: all is well"
    then = "a launch would refuse or hang" if counts[Level.ERROR] else "a launch would go on"
    return f"{cluster}: {', '.join(bad)}; {then}"
