"""What the verbs print: answers of many hosts, the equal ones as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from runner.core.outcome.exits import describe_exit
from runner.ui.node_names import fold_names
from runner.ui.reports.report import code_name

T = TypeVar("T")


@dataclass(frozen=True)
class Deployed:
    """What a deploy did.

    Attributes:
        release: The hash of the release.
        commit: The commit it was made from, "+" added when files differ; "" without git.
        files: How many files it has.
        size: Their bytes.
        seconds: How long the hosts took that lacked it, from the offer to the last one's end.
        sent: Bytes sent, by node; None for one that had the release.
    """

    release: str
    commit: str
    files: int
    size: int
    seconds: float
    sent: Mapping[str, int | None]


@dataclass(frozen=True)
class Cleaned:
    """What is gone from one host, or would be.

    Attributes:
        runs: Their ids.
        releases: Their hashes.
        kept: Runs that are old enough, and in use.
        size: Bytes on its disk.
    """

    runs: tuple[str, ...]
    releases: tuple[str, ...]
    kept: tuple[str, ...]
    size: int

    @staticmethod
    def of(told: Mapping[str, Any]) -> Cleaned:
        """Return what a host said."""
        return Cleaned(
            tuple(told["runs"]), tuple(told["releases"]), tuple(told["kept"]), int(told["bytes"])
        )


def cleaned(gone: Mapping[str, Cleaned], *, dry_run: bool) -> str:
    """Return what went from where, hosts with the same as one; the names when nothing did yet."""
    lines = []
    for each, names in _grouped(
        gone.items(), lambda item: replace(item[1], size=0), lambda item: item[0]
    ):
        what = f"{_some(each.runs, 'run')} and {_some(each.releases, 'release')}"
        verb = "would go" if dry_run else "removed"
        kept = f"; in use: {', '.join(each.kept)}" if each.kept else ""
        size = megabytes(sum(gone[name].size for name in names))
        freed = f"{size}{' in all' if len(names) > 1 else ''}"
        lines.append(f"{fold_names(names)}: {what} {verb}, {freed}{kept}")
        if dry_run:
            lines += [f"  run {name}" for name in each.runs]
            lines += [f"  release {name}" for name in each.releases]
    return "\n".join(lines)


def _some(names: Sequence[str], noun: str) -> str:
    return f"{len(names) or 'no'} {noun}{'' if len(names) == 1 else 's'}"


class Answer(Protocol):
    """What a command did on one host."""

    node: str
    code: int | None
    out: bytearray
    err: bytearray
    problem: str
    dropped: bool
    unproven: bool


class Setting(Protocol):
    """A place that sets a value."""

    @property
    def where(self) -> str:
        """The file and line, the word, or "default"."""
        ...

    @property
    def key(self) -> str:
        """The key it sets: that of a range of nodes, or of what holds for all of them."""
        ...

    @property
    def value(self) -> str:
        """What it says, as YAML."""
        ...


class Origin(Protocol):
    """A value, and where it comes from."""

    @property
    def key(self) -> str:
        """The full key."""
        ...

    @property
    def value(self) -> str:
        """What it is, as YAML."""
        ...

    @property
    def written(self) -> str:
        """How it is written, where that differs."""
        ...

    @property
    def settings(self) -> Sequence[Setting]:
        """Who sets it, the winner first."""
        ...

    @property
    def problem(self) -> str:
        """Why it has no value."""
        ...


def deployed(result: Deployed) -> str:
    """Return which release is where."""
    plural = "" if result.files == 1 else "s"
    what = f"{result.files:,} file{plural}, {megabytes(result.size)}"
    title = f"{code_name(result.release, result.commit)}\n  {what}"
    rows = [
        (fold_names(names), "had it" if sent is None else f"stored, {megabytes(sent)} sent")
        for sent, names in _grouped(result.sent.items(), lambda item: item[1], lambda item: item[0])
    ]
    width = max(len(names) for names, _ in rows)
    return "\n".join([title, *(f"  {names:{width}}  {text}" for names, text in rows)])


def megabytes(size: int) -> str:
    """Return a size as text."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def answers(given: Iterable[Answer]) -> str:
    """Return every answer, hosts with the same one as one."""
    blocks = []
    for (ended, text), names in _grouped(
        given, lambda each: (_ended(each), _text(each)), lambda each: each.node
    ):
        count = f" ({len(names)})" if len(names) > 1 else ""
        blocks.append(f"── {fold_names(names)}{count}{ended} ──")
        blocks += [text] if text else []
    return "\n".join(blocks)


def as_data(given: Iterable[Answer]) -> dict[str, Any]:
    """Return the same for a program."""
    return {
        each.node: {
            "code": each.code,
            "out": each.out.decode(errors="replace"),
            "err": each.err.decode(errors="replace"),
            "problem": each.problem,
            "dropped": each.dropped,
        }
        for each in given
    }


def exit_code(given: Iterable[Answer], signum: int = 0) -> int:
    """Return ours: 5 for what may be left of a stop, 4 for a lost host, 1 for a failure."""
    codes = [128 + signum if signum else 0]
    for each in given:
        lost = each.problem.startswith("lost")
        if each.unproven and (signum or not lost):
            return NOT_STOPPED
        if not signum:
            codes.append(LOST if lost else int(each.code != 0 or bool(each.problem)))
    return max(codes)


LOST, NOT_STOPPED = 4, 5


def origins(found: Iterable[Origin]) -> str:
    """Return per value what it is, who set it, and whom that overrode."""
    blocks = []
    for each in found:
        blocks.append(f"{each.key}: {each.problem or each.value}")
        if each.written:
            blocks.append(f"  written as {each.written}")
        for number, setting in enumerate(each.settings):
            key = f" as {setting.key}" if setting.key != each.key else ""
            over = "" if number == 0 else f" (overridden: {setting.value})"
            blocks.append(f"  {setting.where}{key}{over}")
    return "\n".join(blocks)


def _ended(answer: Answer) -> str:
    if answer.problem:
        return f": {answer.problem}"
    if answer.code is not None and answer.code < 0:
        return f": {describe_exit(None, -answer.code).removeprefix('was ')}"
    return f": exit {answer.code}" if answer.code else ""


DROPPED = "[the rest of its output is dropped]"


def _text(answer: Answer) -> str:
    both = (bytes(answer.out), bytes(answer.err))
    parts = [part.decode(errors="replace").rstrip("\n") for part in both if part]
    return "\n".join(parts + [DROPPED] * answer.dropped)


K = TypeVar("K", bound=Hashable)


def _grouped(
    items: Iterable[T], key: Callable[[T], K], name: Callable[[T], str]
) -> list[tuple[K, list[str]]]:
    """Return the names of items with the same key, in the order in which keys first come."""
    groups: dict[K, list[str]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(name(item))
    return list(groups.items())
