"""Task entries: the settings that each takes, and those it cannot take."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.test_config import problems_of, spec_of

PLAIN = {"task.entry": "plain"}


@pytest.mark.parametrize(
    ("changes", "args"),
    [
        ({"task.args": {"lr": 1}}, ("--local_rank=${local_rank}", "--lr", "1")),
        (
            {"task.args": {"lr": 1}, "task.args_style": "hydra"},
            ("--local_rank=${local_rank}", "lr=1"),
        ),
        (
            {"task.args": ["a", "$b"], "task.args_style": "raw"},
            ("--local_rank=${local_rank}", "a", "$b"),
        ),
        (
            {"task.script": None, "task.command": "python old.py", "task.args": {"lr": 1}},
            ("old.py", "--local_rank=${local_rank}", "--lr", "1"),
        ),
    ],
    ids=["argparse", "hydra", "raw", "command"],
)
def test_the_local_rank_comes_before_the_other_arguments(
    changes: dict[str, Any], args: tuple[str, ...]
) -> None:
    """In every style of arguments; of a command it is one of the program's."""
    assert spec_of({"task.local_rank_arg": "--local_rank", **changes}).task.args == args


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"task.local_rank_arg": "local rank"},
            (
                "task.local_rank_arg: 'local rank' is no flag\n"
                "    such as --local_rank, or --local-rank"
            ),
        ),
        (
            {"task.local_rank_arg": "--local_rank", "task.entry": "launch"},
            (
                "task.local_rank_arg: torch.distributed.launch passes --local-rank by itself\n"
                "    choose task.entry=torchrun, which passes --local_rank, or leave it out"
            ),
        ),
        (
            {"task.local_rank_arg": "--local_rank", **PLAIN},
            (
                "task.local_rank_arg: entry plain starts one process per node, so that there is "
                "no local rank\n    choose task.entry=torchrun, or leave it out"
            ),
        ),
        (
            {"cluster.nodes": {"gpu[1-2]": {}, "gpu2": {"nproc_per_node": 3}}, **PLAIN},
            (
                "cluster.nodes.gpu2.nproc_per_node: entry plain starts one process per node, which "
                "may start its own workers\n    set it to 1 or auto, or task.entry=torchrun"
            ),
        ),
        (
            {"rendezvous.backend": "c10d", **PLAIN},
            (
                "rendezvous.backend: c10d is torchrun's, and entry plain starts none\n"
                "    choose rendezvous=static, or task.entry=torchrun"
            ),
        ),
        (
            {"torchrun.monitor_interval": 1, **PLAIN},
            (
                "torchrun.monitor_interval: entry plain starts no torchrun\n"
                "    leave it out, or set task.entry=torchrun"
            ),
        ),
        (
            {"torchrun.rdzv_conf": {"timeout": 1}, **PLAIN},
            (
                "torchrun.rdzv_conf: entry plain starts no torchrun\n"
                "    leave it out, or set task.entry=torchrun"
            ),
        ),
        (
            {"task.entry": "mpirun"},
            "task.entry: 'mpirun' is not legal; choose torchrun, launch or plain",
        ),
    ],
)
def test_what_an_entry_cannot_do_is_one_problem(changes: dict[str, Any], problem: str) -> None:
    """It names the key, and what takes its place."""
    assert problems_of(changes) == [problem]


def test_a_plain_program_can_be_relaunched() -> None:
    """A relaunch is ours, and needs no torchrun."""
    spec = spec_of({"relaunch.max": 2, "cluster.nproc_per_node": 2, **PLAIN})
    assert spec.task.is_plain
    assert spec.relaunch.max == 2
