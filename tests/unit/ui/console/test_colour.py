"""Prefixes, colours, and control sequences from ranks."""

from __future__ import annotations

import pytest

from runner.ui.console.colour import LineStyler
from runner.ui.console.dedup import Source

GREY = LineStyler(["gpu1", "gpu2"], {"NO_COLOR": "1", "TERM": "xterm-256color"})
BASIC = LineStyler(["gpu1", "gpu2"], {"TERM": "xterm"})


def sources(*ranks: int) -> list[Source]:
    return [Source(f"gpu{rank // 2 + 1}", rank) for rank in ranks]


def test_prefix_names_node_and_rank() -> None:
    """Standard error has a mark, with and without colour."""
    assert GREY.prefix(Source("gpu2", 1), is_error=False) == b"[gpu2:1] "
    assert GREY.prefix(Source("gpu2", 1), is_error=True) == b"[gpu2:1]! "
    assert BASIC.prefix(Source("gpu1", 0), is_error=False) == b"\x1b[36m[gpu1:0]\x1b[0m "
    assert BASIC.prefix(Source("gpu2", 1), is_error=True) == (
        b"\x1b[35m[gpu2:1]\x1b[0m\x1b[31m!\x1b[0m "
    )
    assert BASIC.prefix(Source("gpu2", 1), is_error=True, is_plain=True) == b"[gpu2:1]! "


def test_prefix_of_many() -> None:
    """How many, and where if that is short."""
    assert GREY.prefix(*sources(0, 2, 4), is_error=False) == "[×3 gpu[1-3]] ".encode()
    assert GREY.prefix(*sources(*range(0, 80, 6)), is_error=False) == "[×14] ".encode()


@pytest.mark.parametrize(
    ("wrote", "shown"),
    [
        (b"plain\ntext", b"plain\ntext"),
        (b"\x1b[31mred\nnot red", b"\x1b[31mred\x1b[0m\nnot red"),
        (b"up\x1b[1A\x1b[2Kwiped", b"upwiped"),
        (b"\x1b]0;title\x07text", b"text"),
        (b"\x1b]8;;http://x\x1b\\link", b"link"),
        (b"\x1b[?1049h\x1b7\x1bc\x1b(0text", b"text"),
        ("é\u009b2J\u009d0;t\x1b\u0080[2J°".encode(), "é2J0;t°".encode()),
        (b"ring\x07 back\x08 other\x0e", b"ring back other"),
        (b"cut \x1b", b"cut "),
        ("hällo\t█".encode(), "hällo\t█".encode()),
    ],
)
def test_ranks_colour_their_own_line_at_most(wrote: bytes, shown: bytes) -> None:
    """Nothing of theirs moves the cursor, or lasts beyond the line."""
    assert BASIC.clean(wrote) == shown


def test_no_colour_at_all_where_it_is_not_wanted() -> None:
    """Neither ours nor theirs."""
    assert GREY.clean(b"\x1b[31mred") == b"red"
    assert GREY.style_report("run a failed after 1 s") == "run a failed after 1 s"


def test_what_goes_on_is_no_failure() -> None:
    """It has no colour."""
    for calm in ("run a goes on without this terminal", "run a is being stopped without it"):
        assert BASIC.style_report(calm) == calm
    failed = "run a failed after 1 s"
    assert BASIC.style_report(failed) == f"\x1b[1;31m{failed}\x1b[0m"
