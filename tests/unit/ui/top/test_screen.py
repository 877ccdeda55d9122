"""The view of `top`: order, columns, keys, and hosts that send what acts on terminals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.model.samples import GpuSample, GpuUser
from runner.ui.top.cluster_view import ClusterView
from runner.ui.top.node_table import ordered_rows
from runner.ui.top.screen import Screen, encode_frame
from tests.golden.cluster_views import WALL, gpu, node, nodes, view

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def names(shown: ClusterView, sort: str, **more: bool) -> list[str]:
    return [row.node.name for row in ordered_rows(shown, sort, **more)]


def texts(screen: Screen, shown: ClusterView, width: int = 120, height: int = 24) -> list[str]:
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
