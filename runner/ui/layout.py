"""Layout of text: node names folded into ranges, aligned rows, and tables."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from runner.core.shell import this_program

K = TypeVar("K", bound=Hashable)

PIPE_WIDTH, UNLIMITED_WIDTH = 100, 10_000  # of prose, and of tables, where there is no terminal
COLUMN_GAP = 2
WRAPPED_WIDTH = 16  # of a column of longer cells, if there is no room for more


def fold_names(names: Iterable[str]) -> str:
    """Return names in ClusterShell's notation, `gpu[1-7]`, which the YAML accepts, too.

    Text that is not a node's name, but has a meaning in that notation, is left as it is.
    """
    return _fold_unique_names(tuple(dict.fromkeys(names)))


@functools.lru_cache(maxsize=512)
def _fold_unique_names(names: tuple[str, ...]) -> str:
    if len(names) <= 1 or not all(re.fullmatch(r"[\w.-]+", name) for name in names):
        return ", ".join(names)
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(names))


def display_folder(path: str) -> str:
    """Return the path of a folder here as one types it: "." or "~/project"."""
    home = str(Path("~").expanduser())
    with contextlib.suppress(OSError):  # the working folder was removed
        if Path(path) == Path.cwd():
            return "."
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def detect_screen() -> tuple[int, bool]:
    """Return the width of standard output, and whether it is a terminal that takes colours."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    width = os.get_terminal_size(sys.stdout.fileno()).columns if is_terminal else PIPE_WIDTH
    return width or PIPE_WIDTH, is_terminal


def terminal_width() -> int:
    """Return the width of standard output: in a pipe, a line may be as long as it has to."""
    width, is_terminal = detect_screen()
    return width if is_terminal else UNLIMITED_WIDTH


def message_width(descriptor: int | None = None) -> int:
    """Return the width of standard error, where notes are wrapped: in a pipe they are not.

    Another `descriptor` may stand in for it.
    """
    with contextlib.suppress(OSError):
        fd = sys.stderr.fileno() if descriptor is None else descriptor
        return os.get_terminal_size(fd).columns or PIPE_WIDTH
    return UNLIMITED_WIDTH


_PROGRAMS = r"sudo|ssh-\S+|ssh(?= -)|(?:\S*/)?(?:runner|fab|python[0-9.]* -m)"
"""What commands in messages begin with, besides this program as it was typed."""

_QUOTED = re.compile(r"""`[^`]*`|(?<!\w)'[^']*'(?!\w)|(?<!\w)"[^"]*"(?!\w)""")


def wrap_lines(text: str, width: int) -> str:
    """Return text whose lines are broken at blanks alone; a command stays whole on a line."""
    return "\n".join(part for each in text.split("\n") for part in _wrap_line(each, width))


def _wrap_line(line: str, width: int) -> list[str]:
    margin = line[: len(line) - len(line.lstrip(" #"))]  # that of a comment, too
    if len(line) <= width or line.lstrip().startswith("| "):  # a quotation
        return [line]
    if match := _match_command(line):
        before = match[1].rstrip()
        return [*_wrap_line(before, width), f"    {match[2]}"] if before else [line]
    return wrap(line[len(margin) :].rstrip(), width, margin, f"{margin}    ")


def _match_command(line: str) -> re.Match[str] | None:
    """Match a line that is a command, perhaps after some words and a colon: the two groups."""
    programs = f"{re.escape(this_program())}|{_PROGRAMS}"
    return re.fullmatch(rf"(|.*?: | +)((?:nohup )?(?:{programs}) \S.*)", line)


def wrap(text: str, width: int, margin: str = "", hanging_margin: str = "") -> list[str]:
    """Return text as lines that are broken at blanks outside of quotes, to be copied."""
    wrapper = textwrap.TextWrapper(width, margin, hanging_margin, break_long_words=False)
    wrapper.break_on_hyphens = False
    joined = _QUOTED.sub(lambda match: match[0].replace(" ", "\0"), text)
    return [line.replace("\0", " ") for line in wrapper.wrap(joined)] or [""]


def align(rows: Sequence[Sequence[str]], indent: str = "  ", max_width: int = 40) -> list[str]:
    """Return rows as lines; cells longer than `max_width` do not make their column wider."""
    widths = [min(max(map(len, cells)), max_width) for cells in zip(*rows, strict=True)]
    padded = ([f"{cell:{n}}" for cell, n in zip(row, widths, strict=True)] for row in rows)
    return [(indent + "  ".join(cells)).rstrip() for cells in padded]


def fitting_columns(
    columns: Mapping[str, Sequence[str]], width: int, wrapped: Collection[str]
) -> dict[str, int]:
    """Return those columns, by their headers, that fit beside each other, and their widths.

    The first is among them, and of the others the earlier comes before the later. Cells below the
    headers in `wrapped` may be broken at blanks.
    """
    from rich.cells import cell_len

    widths, full_widths, left = dict[str, int](), dict[str, int](), width + COLUMN_GAP
    for header, cells in columns.items():
        full = least = max(map(cell_len, (header, *cells)))
        if header in wrapped and full > WRAPPED_WIDTH:
            words = (word for cell in (header, *cells) for word in cell.split())
            least = max(WRAPPED_WIDTH, *map(cell_len, words))
        if least + COLUMN_GAP <= left or not widths:
            widths[header], full_widths[header] = least, full
            left -= least + COLUMN_GAP
    for header, full in full_widths.items():
        more = min(full - widths[header], max(left, 0))
        widths[header] += more
        left -= more
    return widths


def render_table(widths: Mapping[str, int], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the lines of the headers, whose columns have these widths, and of each row."""
    from rich.cells import cell_len

    blocks = []
    for row in (tuple(widths), *rows):
        sized = [*zip(row, widths.values(), strict=True)]
        columns = [wrap(cell, n) if cell_len(cell) > n else [cell] for cell, n in sized]
        lines = []
        for cells in itertools.zip_longest(*columns, fillvalue=""):
            padded = (
                cell + " " * (n + COLUMN_GAP - cell_len(cell))
                for cell, n in zip(cells, widths.values(), strict=True)
            )
            lines.append("".join(padded).rstrip())
        blocks.append(lines)
    return blocks


def group_names(keys: Iterable[tuple[str, K]]) -> dict[K, list[str]]:
    """Return the names of each key, in the order of each key's first name."""
    groups: dict[K, list[str]] = {}
    for name, key in keys:
        groups.setdefault(key, []).append(name)
    return groups
