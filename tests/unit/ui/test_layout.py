"""Columns: aligned rows, and tables that fit a terminal."""

from __future__ import annotations

from runner.ui.layout import UNLIMITED_WIDTH, fitting_columns, render_table

HEADERS = ("RUN", "STATE", "AGE")
ROWS = [("1122-2359-resnet18-ab12", "running, 3 of 4 nodes", "42 min"), ("0314", "[bold]", "3 d")]


COLUMNS = dict(zip(HEADERS, zip(*ROWS, strict=True), strict=True))


def test_table_in_a_pipe_has_a_line_per_row() -> None:
    """Whatever a terminal would make of it; and brackets are text."""
    widths = fitting_columns(COLUMNS, UNLIMITED_WIDTH, ("STATE",))
    assert [line for (line,) in render_table(widths, ROWS)] == [
        "RUN                      STATE                  AGE",
        "1122-2359-resnet18-ab12  running, 3 of 4 nodes  42 min",
        "0314                     [bold]                 3 d",
    ]


def test_table_fits_a_terminal() -> None:
    """Cells of some columns break at blanks; a run id, which is copied, never does."""
    widths = fitting_columns(COLUMNS, 50, ("STATE",))
    assert render_table(widths, ROWS) == [
        ["RUN                      STATE              AGE"],
        [
            "1122-2359-resnet18-ab12  running, 3 of 4    42 min",
            "                         nodes",
        ],
        ["0314                     [bold]             3 d"],
    ]


def test_columns_without_room_are_left_out() -> None:
    """The first never is, and a later one that is narrow may fit where another does not."""
    assert fitting_columns(COLUMNS, 40, ("STATE",)) == {"RUN": 23, "AGE": 6}
    assert fitting_columns(COLUMNS, 10, ()) == {"RUN": 23}
