"""The view of `top` in windows of two widths."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from runner.ui.top.screen import Screen, text_table
from tests.golden.cluster_views import view
from tests.golden.conftest import Check

HEIGHT = 24


@pytest.fixture(autouse=True)
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("width", [40, 120])
def test_a_window_of_nodes_of_gpus_and_of_help(width: int, check_screen: Check) -> None:
    """Less important columns give way; no line is wrapped, and none is wider."""
    screen = Screen()
    shown = []
    for title, keys in (("nodes", ""), ("GPUs, from the second on", "gj"), ("help", "?")):
        for key in keys:
            screen.on_key(key)
        lines = screen.lines(view(), width, HEIGHT)
        assert len(lines) == HEIGHT
        assert all(line.cell_len <= width for line in lines)
        text = "\n".join(line.plain.rstrip() for line in lines)
        shown.append(f"{title}\n{text}\n")
    check_screen(f"top-{width}.txt", "\n".join(shown))


def test_the_table_that_is_printed_once(check_screen: Check) -> None:
    """In a pipe no name is cut, and where only ASCII is safe, blocks are digits."""
    lines = text_table(view(), 10_000, ascii_only=True)
    check_screen("top-pipe.txt", "".join(f"{line.plain.rstrip()}\n" for line in lines))
