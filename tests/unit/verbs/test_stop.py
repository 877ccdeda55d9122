"""The verb `stop`: which hosts are asked what is left of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from runner.control.rpc.wait import NO_ANSWER
from runner.control.run.found_run import FoundRun
from runner.core.errors import Problem
from runner.verbs.stop import _kill_leftovers


def test_a_host_that_answers_pings_alone_is_awaited_once() -> None:
    """Not again after it was asked about the run; one that follows the run by now is asked."""
    asked: set[str] = set()

    def broadcast(names: set[str]) -> Any:
        asked.update(names)
        replies: dict[str, dict[str, list[int]]] = {name: {"survivors": []} for name in names}
        return SimpleNamespace(collect=lambda *_: (replies, {}))

    unreachable = {"b": Problem("b", NO_ANSWER), "c": Problem("c", NO_ANSWER)}
    run = SimpleNamespace(
        finder=SimpleNamespace(unreachable=unreachable, pool=SimpleNamespace(broadcast=broadcast)),
        all_nodes=("a", "b", "c"),
        reported=SimpleNamespace(by_host={}),
        plan=SimpleNamespace(run_id="run"),
    )
    left = _kill_leftovers(cast("FoundRun", run), unfollowed={"b"})
    assert asked == {"a", "c"}
    assert left == {"a": 0, "b": NO_ANSWER, "c": 0}
