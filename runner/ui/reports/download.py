"""What a pull brought home, in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runner.core.codec import encode
from runner.core.errors import Problem
from runner.ui.node_names import fold_names
from runner.ui.reports.tables import megabytes


class Pulled(Protocol):
    """What came of one node."""

    new: int
    there: int
    size: int
    left_out: int
    notes: list[str]
    problems: list[Problem]
    failed: int
    whole: bool


def summary(pulled: Mapping[str, Pulled], folder: str) -> str:
    """Return what came from where, and what did not; nodes with as many files as one."""
    total = sum(each.new for each in pulled.values())
    size = sum(each.size for each in pulled.values())
    if total:
        lines = [f"pulled {_files(total)}, {megabytes(size)}, into {folder} ({_shares(pulled)})"]
    elif any(each.there for each in pulled.values()):
        lines = [f"nothing new; {_files(sum(e.there for e in pulled.values()))} in {folder}"]
    else:
        lines = ["nothing was pulled"]
    for name, each in pulled.items():
        lines += [f"  {name}: {note}" for note in each.notes]
        if each.left_out:
            lines.append(f"  {name}: {each.left_out:,} more are left out: too many for one pull")
        if (more := each.failed - len(each.problems)) > 0:
            lines.append(f"  {name}: {_files(more)} more could not be had")
    return "\n".join(lines)


def problems(pulled: Mapping[str, Pulled]) -> Sequence[Problem]:
    """Return every problem of every node, the advice with the last of each."""
    found = []
    for each in pulled.values():
        found += [Problem(one.where, one.what) for one in each.problems[:-1]]
        found += each.problems[-1:]
    return found


def as_data(pulled: Mapping[str, Pulled]) -> dict[str, Any]:
    """Return it as a program can read it."""
    return {name: encode(each) for name, each in pulled.items()}


def _shares(pulled: Mapping[str, Pulled]) -> str:
    """Return whose files they are: `gpu[1-3] 4 each, gpu4 1`."""
    groups: dict[int, list[str]] = {}
    for name, each in pulled.items():
        groups.setdefault(each.new, []).append(name)
    if len(groups) == 1:
        return fold_names(pulled)
    shares = (
        f"{fold_names(names)} {count or 'none'}{' each' if count and len(names) > 1 else ''}"
        for count, names in groups.items()
    )
    return ", ".join(shares)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
