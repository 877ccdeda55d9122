"""Reports of the shipped task `collectives`, without torch."""

from __future__ import annotations

from itertools import combinations

import pytest

from runner.tasks import collectives_report as report


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("64K", 65536), ("2GiB", 2 << 30), ("3mb", 3 << 20)],
)
def test_sizes_are_read_in_powers_of_1024(text: str, count: int) -> None:
    """The unit may be written in any of the usual ways."""
    assert report.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "0", "1.5G", "K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Rather than taken for something else."""
    with pytest.raises(ValueError, match="is no size such as"):
        report.parse_size(text)


@pytest.mark.parametrize("players", [0, 1, 2, 5, 8])
def test_everyone_meets_everyone_once_and_nobody_is_in_two_places(players: int) -> None:
    """And it takes no more rounds than it must."""
    rounds = report.tournament(players)

    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(players), 2))
    for pairs in rounds:
        busy = [player for pair in pairs for player in pair]
        assert len(busy) == len(set(busy))
        assert len(pairs) == players // 2
    assert len(rounds) == max(players - 1 + players % 2, 0)


@pytest.mark.parametrize(("nodes", "slow"), [(3, 0), (8, 2)])
def test_a_slow_node_is_named_and_none_of_those_it_talks_to(nodes: int, slow: int) -> None:
    """Medians keep its slow links from being counted against the others."""
    names = [f"node{number}" for number in range(nodes)]
    speeds = [[3e9 if slow in (a, b) else 1e10 for b in range(nodes)] for a in range(nodes)]
    verdicts = [share.verdict() for share in report.compare_nodes(names, speeds)]
    assert [text for text in verdicts if text] == [f"node{slow} is slow: 0.3 of the others' median"]
