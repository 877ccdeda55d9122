"""Runs as several hosts list them: whose word counts, and which state they come to."""

from __future__ import annotations

import time
import zlib
from dataclasses import replace
from typing import Any

import pytest

from runner.control.run.discovery import HostRecord, newest_record, parse_record
from runner.control.run.hosts import merge_statuses
from runner.core.remote_run import RemoteRun, current_hosts
from runner.core.wire.codec import decode, encode
from runner.core.wire.plan import NodePlan
from runner.core.wire.run_info import HostRunStatus, RunInfo
from runner.core.wire.states import State
from tests.golden import builders


def reply(*statuses: HostRunStatus) -> dict[str, Any]:
    """What one host answers."""
    return {"runs": list(statuses), "now": time.time()}


def status(node: str, *, here: bool = True, **fields: Any) -> HostRunStatus:
    known = {"info": RunInfo("r1"), "owner": "ada", "state": State.RUNNING, "alive": here}
    return HostRunStatus(**{**known, "changed_at": 0.0, "node": node, "here": here, **fields})


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    ("replies", "silent", "nodes"),
    [
        ({"b": reply(status("a"), status("b"))}, "a", {"b": "b"}),
        ({"c": reply(status("a")), "a": reply(status("a"))}, "", {"a": "a"}),
        ({"b": reply(status("b", here=False))}, "", {"b": "b"}),
        ({"b": reply(status("a", here=False))}, "", {}),
        ({"b": reply(status("b")), "x": reply(status("a"))}, "", {"b": "b", "x": "a"}),
    ],
    ids=["its host is silent", "its host has it", "shared disk", "of another host", "renamed"],
)
def test_no_host_speaks_for_another(
    replies: dict[str, dict[str, Any]], silent: str, nodes: dict[str, str]
) -> None:
    """One that lies would prove that nothing is left on a host that nobody reached."""
    runs = merge_statuses(replies, [*replies, *silent])
    assert {name: each.node for run in runs for name, each in run.by_host.items()} == nodes


def test_of_two_answers_the_newest_attempt_wins() -> None:
    """Of one attempt that of the most nodes: some may have joined."""
    info = RunInfo("r1")
    old, joined = HostRecord(builders.plan(1), "", info), HostRecord(builders.plan(1, 1), "", info)
    new = HostRecord(replace(builders.plan(1), attempt=1), "", info)
    assert newest_record({"x": old, "y": joined}) == joined
    assert newest_record({"x": old, "y": new, "z": joined}) == new


@pytest.mark.promise(12)
def test_what_a_host_says_is_no_path_and_no_command() -> None:
    """A recorded host comes to stand in the line that adds a node which the YAML lacks."""
    for lie in (status("../b"), status("a", info=RunInfo("../r1"))):
        with pytest.raises(ValueError, match="is not legal"):
            decode(HostRunStatus, encode(lie))
    plan = encode(builders.plan(1).nodes[0])
    for word in ("-oProxyCommand=x", "$(x)", "a;b"):
        for key in ("host", "user"):
            with pytest.raises(ValueError, match="is no host or user"):
                decode(NodePlan, {**plan, key: word})


MEMBER, HUB = {"b": State.SUCCEEDED}, {"a": State.SUCCEEDED}


@pytest.mark.parametrize(
    ("states", "left", "min_nodes", "has_ended"),
    [
        (HUB, 0, 0, True),  # it waits for the others
        (MEMBER, 0, 0, False),
        ({"b": State.FAILED}, 0, 0, True),  # a failure ends all
        ({"b": State.FAILED}, 1, 0, False),  # and may be followed by another attempt
        ({"b": State.FAILED}, 0, 1, False),  # or the others go on without it
    ],
)
def test_a_run_has_ended_if_it_cannot_go_on_elsewhere(
    states: dict[str, State], left: int, min_nodes: int, *, has_ended: bool
) -> None:
    """Where some of its hosts do not answer."""
    info = RunInfo("r1", nnodes=3, relaunches_left=left, min_nodes=min_nodes)
    by_host = {
        node: status(node, info=info, state=state, alive=False) for node, state in states.items()
    }
    assert RemoteRun(info, by_host).has_ended(["a", "b", "c"]) == has_ended


def test_who_only_stands_by_is_no_node_of_a_run() -> None:
    """Unless nobody else is left who tells of it."""
    info = RunInfo("r", "train", attempt=1, standby_nodes=("n2",))
    seen = {name: status(name, info=info) for name in ("n0", "n1", "n2")}
    assert list(current_hosts(seen)) == ["n0", "n1"]
    assert list(current_hosts({"n2": seen["n2"]})) == ["n2"]


@pytest.mark.promise(12)
def test_a_record_that_would_take_all_memory_is_refused() -> None:
    """A megabyte that came may be hundreds of them, and many times that as lists."""
    lists = f'{{"plan": "[{"[]," * (20 << 20)}[]]"}}'
    with pytest.raises(ValueError, match="larger than announced"):
        parse_record(zlib.compress(lists.encode(), 1), "run-1", "")
