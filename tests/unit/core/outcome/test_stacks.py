"""Stacks of many ranks as one picture: equal stacks, and the rank that others wait for."""

from __future__ import annotations

import pytest

from runner.core.outcome.stacks import (
    Frame,
    Stack,
    StackGroup,
    group_stacks,
    parse_dumps,
    summary,
)
from runner.core.wire.paths import DUMP_END
from tests.golden import builders

C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed"
DUMP = f"""\
=== stacks, 2026-11-21T22:51:00+00:00: asked for
--- rank 0: process 71 (python3.11), by faulthandler
Current thread 0x00007f0b (most recent call first):
  File "{C10D}/distributed_c10d.py", line 3252 in all_reduce
  File "{C10D}/c10d_logger.py", line 83 in wrapper
  File "/home/a/.runner/runs/r/node1/work/train.py", line 27 in step
  File "/home/a/.runner/runs/r/node1/work/train.py", line 37 in <module>
--- rank 1: process 72 (bash), by nothing: it is no Python
{DUMP_END}"""

LATER = DUMP.replace("22:51", "22:52").replace("all_reduce", "barrier")

PLAN = builders.plan(2, 2)


def stack(rank: int, *calls: str) -> Stack:
    """A rank in calls such as `torch/x.py:3:all_reduce`, the innermost first."""
    frames = (call.split(":") for call in calls)
    return Stack(rank, "python", "py-spy", tuple(Frame(f, int(n), c) for f, n, c in frames))


def waiting(rank: int, operation: str = "all_reduce", line: int = 27) -> Stack:
    """A rank in an operation of torch's, called by train.py."""
    return stack(
        rank, f"torch/distributed/distributed_c10d.py:3252:{operation}", f"train.py:{line}:step"
    )


def says(*stacks: Stack, silent: str = "") -> str:
    """What the stacks tell together; nothing is known of the `silent` node."""
    told = {
        node: [stack for stack in stacks if PLAN.node_of_rank[stack.rank] == node]
        for node in "ab"
        if node != silent
    }
    return summary(group_stacks(PLAN, told))


def test_dumps_are_read_back() -> None:
    """Each with its processes; of one with threads, the one that answered; torn lines are left."""
    first, second = parse_dumps(f"torn line\n{DUMP}{LATER}")
    assert first.time == "2026-11-21T22:51:00+00:00"
    rank_0, rank_1 = first.stacks
    assert [frame.function for frame in rank_0.frames] == [
        *("all_reduce", "wrapper", "step", "<module>"),
    ]
    assert rank_0.frames[0].line == 3252
    assert (rank_1.frames, rank_1.method) == ((), "nothing: it is no Python")
    assert second.stacks[0].frames[0].function == "barrier"
    assert parse_dumps(DUMP[:-5]) == parse_dumps("") == []


@pytest.mark.promise(12)
@pytest.mark.parametrize("number", ["9" * 5000, "1..2", "-1"])
@pytest.mark.parametrize("honest", ["rank 0", "process 71", "line 3252"])
def test_numbers_that_are_none_are_skipped(number: str, honest: str) -> None:
    """A host may write anything."""
    (dump,) = parse_dumps(DUMP.replace(honest, f"{honest.rpartition(' ')[0]} {number}".strip()))
    assert dump.stacks[-1].rank == 1


@pytest.mark.promise(12)
def test_a_host_is_not_heard_on_the_ranks_of_another() -> None:
    """What it says of its own counts."""
    plan = builders.plan(1, 1)
    report = group_stacks(plan, {"a": [waiting(0), waiting(1)], "b": [waiting(1, "barrier")]})
    assert [(group.ranks, group.collective) for group in report.groups] == [
        *(((0,), "all_reduce"), ((1,), "barrier")),
    ]


def test_equal_stacks_are_one_and_the_odd_comes_first() -> None:
    """Who waits for others comes last; of a rank's processes the first counts."""
    odd = stack(2, "data.py:9:read")
    told = [waiting(0), odd, waiting(1), stack(1, "pool.py:3:work"), waiting(3)]
    groups = group_stacks(builders.plan(4), {"a": told}).groups
    assert [group.ranks for group in groups] == [(2,), (0, 1, 3)]
    assert [group.collective for group in groups] == ["", "all_reduce"]


def test_a_package_of_debians_pip_is_the_users_and_lib64_is_pythons() -> None:
    """Whose call it is that waits."""
    wait = "/usr/lib64/python3.9/threading.py:320:wait"
    read = "/usr/local/lib/python3.9/dist-packages/mine/loop.py:3:read"
    said = says(waiting(0), stack(1, wait, read, "train.py:1:main"))
    assert "rank 1 on a, which is in wait, called in read (mine/loop.py:3) and" in said


def test_what_is_waited_in_is_the_call_that_the_user_made() -> None:
    """Not torch's inner or wrapping ones; a gradient's reduction has no frame but autograd's."""
    inner = "torch/distributed/distributed_c10d.py:1:_wait"
    outer = "torch/distributed/distributed_c10d.py:2:broadcast_object_list"
    wrapper = "torch/distributed/c10d_logger.py:3:wrapper"
    backward = "torch/autograd/graph.py:5:_engine_run_backward"
    mine = "a.py:1:f"
    calls = {
        "broadcast_object_list": (inner, outer, wrapper, mine),
        "backward": (backward, mine),
        "": (mine, outer),
    }
    for operation, frames in calls.items():
        assert StackGroup((0,), stack(0, *frames)).collective == operation


def test_who_waits_for_whom() -> None:
    """The late one with its place and node; the ended one; one of whom nothing is known."""
    others = (waiting(0), waiting(1), waiting(3))
    late = stack(2, "data.py:9:read", "train.py:20:step")
    wait = "ranks 0-1, 3 wait in all_reduce"
    assert says(*others, late) == f"{wait} for rank 2 on b, which is in read (data.py:9)"
    assert says(*others) == f"{wait} for rank 2 on b, which has ended"
    mute = Stack(2, "bash", "nothing: it is no Python")
    assert says(*others, mute) == f"{wait} for rank 2 on b (nothing: it is no Python)"
    assert says(waiting(0), waiting(1), silent="b") == (
        "ranks 0-1 wait in all_reduce for ranks 2-3 on b, which sent no stacks"
    )


def everywhere(*stacks: Stack) -> str:
    """What ranks 0 and 1, which are all there are, tell."""
    return summary(group_stacks(builders.plan(2), {"a": stacks}))


def test_ranks_that_wait_for_each_other() -> None:
    """In different operations, at different calls of one, or all at the same place."""
    assert everywhere(waiting(0), waiting(1, "broadcast")) == (
        "rank 0 waits in all_reduce and rank 1 waits in broadcast: "
        "they do not agree on which collective comes next"
    )
    assert "called from different places" in everywhere(waiting(0), waiting(1, line=40))
    assert "all at the same place" in everywhere(waiting(0), waiting(1))
