"""The view of `top`: order, columns, keys, and hosts that send what acts on terminals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.model.samples import GpuSample, GpuUser
from runner.ui.top.cluster_view import ClusterView
from runner.ui.top.node_table import ordered_rows
from runner.ui.top.screen import Screen, encode_frame
from runner.ui.top.terminal import KeyDecoder
from tests.golden.cluster_views import WALL, gpu, large_view, node, nodes, view

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def names(shown: ClusterView, sort: str, **more: bool) -> list[str]:
    """Return the names of the nodes in an order."""
    return [row.node.name for row in ordered_rows(shown, sort, **more)]


def texts(screen: Screen, shown: ClusterView, width: int = 120, height: int = 24) -> list[str]:
    """Return the lines of a window."""
    return [line.plain for line in screen.lines(shown, width, height)]


def test_the_unusual_come_first_and_the_others_by_name() -> None:
    """In the order of how much it matters; numbers in names count as numbers; orders turn round."""
    kinds = {each.name: kind for kind, each in nodes().items()}
    order = [kinds[name] for name in names(view(), "unusual")]
    worst = ["silent", "broken", "hot", "foreign", "unowned", "idle", "capped"]
    assert order == [*worst, "connecting", "usual", "free", "untold"]
    by_name = names(view(), "name")
    assert by_name == sorted(by_name, key=lambda name: int(name[3:]))
    assert names(view(), "name", reverse=True) == by_name[::-1]
    assert names(view(), "memory")[0] == "gpu6"


def test_a_gpu_is_idle_only_if_all_recent_samples_say_so() -> None:
    """A pause of a step is no idleness."""
    idle = nodes()["idle"]
    working = nodes()["usual"].samples[-1]
    blinking = replace(
        idle, samples=(*idle.samples[:-1], replace(working, node=idle.name), idle.samples[-1])
    )
    young = replace(idle, samples=idle.samples[:2])
    for each, notes in ((idle, 1), (blinking, 0), (young, 0)):
        rows = ordered_rows(ClusterView("lab", WALL, (each, nodes()["usual"])), "name")
        assert len(rows[0].anomalies) == notes, each


@pytest.mark.parametrize("width", [20, 320])
@pytest.mark.parametrize("height", [3, 60])
def test_a_frame_fits_every_window(width: int, height: int) -> None:
    """It has as many lines as the window, none of them wider, also with wide letters."""
    user = GpuUser(1, "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 40, "python", 0)
    wide = ClusterView("lab", WALL, (node(1, gpu(0, users=(user,))),))
    for key in ("", "g", "?", "s"):
        for shown in (view(), wide):
            screen = Screen()
            screen.on_key(key)
            lines = screen.lines(shown, width, height)
            assert len(lines) == height
            assert max(line.cell_len for line in lines) <= width


def test_scrolling_reaches_all_of_200_nodes() -> None:
    """Where the reader is stays within the rows, whatever is pressed how often."""
    screen, shown = Screen(), large_view()
    first = texts(screen, shown)
    assert "gpu101 " in first[2], "the unusual one"
    for _ in range(30):
        screen.on_key("pagedown")
        texts(screen, shown)
    last = texts(screen, shown)
    assert any(line.startswith("gpu200 ") for line in last)
    assert last[-1].startswith("184-200 of 200 ")
    screen.on_key("k")
    assert texts(screen, shown)[-1].startswith("183-199 of 200 ")
    screen.on_key("home")
    screen.on_key("up")
    assert texts(screen, shown) == first


@pytest.mark.promise(12)
def test_nothing_from_a_host_acts_on_the_terminal() -> None:
    """Names, users, errors and reasons are escaped, and a long one is cut."""
    bad = GpuUser(1, ESCAPE, ESCAPE * 1000, 0, "")
    sick = node(1, gpu(0, users=(bad,)), GpuSample(1, error=ESCAPE * 1000))
    silent = replace(nodes()["silent"], name=ESCAPE, reason=ESCAPE)
    row = replace(view().runs[0], run_id=ESCAPE, state=ESCAPE, owner=ESCAPE, nodes=(ESCAPE,))
    shown = ClusterView(ESCAPE, WALL, (sick, silent), (row,), (ESCAPE,))
    for keys in ("", "g"):
        screen = Screen()
        for key in keys:
            screen.on_key(key)
        lines = screen.lines(shown, 400, 30)
        assert all(line.plain.isprintable() or not line.plain for line in lines)
        for line in encode_frame(lines, 400, colour=False):
            assert "\x07" not in line
            assert "\x1b]" not in line


@pytest.mark.parametrize(
    ("pieces", "keys"),
    [
        ([b"\x1b[A\x1b[6~j"], ["up", "pagedown", "j"]),
        ([b"\x1b", b"[", b"B"], ["down"]),
        ([b"\x1b[200~x"], ["x"]),
        ([b"\x1b"], ["escape"]),
        ([b"\x1b\x1b"], []),
    ],
)
def test_keys(pieces: list[bytes], keys: list[str]) -> None:
    """A sequence may come in pieces, and Escape alone is a key once nothing follows it."""
    decoder = KeyDecoder()
    found = [key for piece in pieces for key in decoder.feed(piece)]
    assert [*found, *decoder.flush()] == keys
