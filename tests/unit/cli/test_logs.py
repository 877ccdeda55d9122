"""Words of the verb `logs`."""

from __future__ import annotations

import pytest

from runner.cli.commands.logs import nothing_written


@pytest.mark.parametrize(
    ("chosen", "node", "since", "told"),
    [
        ((), "", "", "nothing was written"),
        ((), "", "10m", "nothing was written in the last 10m"),
        ((1,), "", "", "rank 1 wrote nothing"),
        ((0, 1, 2, 5), "", "2h", "ranks 0-2, 5 wrote nothing in the last 2h"),
        ((2, 3), "gpu2", "", "ranks 2-3 wrote nothing on gpu2"),
        ((), "gpu2", "", "nothing was written on gpu2"),
    ],
)
def test_silence_is_that_of_the_chosen_ranks(
    chosen: tuple[int, ...], node: str, since: str, told: str
) -> None:
    """The others may have written much."""
    assert nothing_written(chosen, node, since) == told
