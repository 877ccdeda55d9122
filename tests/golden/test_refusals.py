"""Refusals of a configuration, word for word, on one page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.conftest import Check
from tests.unit.config.test_config import problems_of

SECRET = "hunter2"
ENVIRON = {"TOKEN": SECRET}
PLAIN = {"task.entry": "plain"}
TWO: dict[str, Any] = {"cluster.nodes": {"a1": {}, "a2": {}}}
SLURM = {"cluster.scheduler": "slurm"}
COMMAND = {"task.script": None}

CASES: list[dict[str, Any]] = [
    {"cluster.backend": "ncll", "lost_s": -1, "cluster.nodes": {"a": {"gpu": 1}}},
    {"cluster.secrets": ["TOKEN", "NOT_SET"], "cluster.pass_env": ["TOKEN"]},
    {"cluster.secrets": ["TOKEN"], "notify": f"mail {SECRET}"},
    {"cluster.nodes": {"gpu[1-": {}, "a": "10.0.0.1", "b": {"host": f"ada:{SECRET}@10.0.0.1"}}},
    {"cluster.nodes": {"a": {"host": "x"}, "b": {"host": "x"}}, "cluster.ssh.key": "/no/key"},
    {**TWO, "cluster.exclude": ["a[1-3]"], "task.nnodes": 3},
    {**TWO, "cluster.master": "a1", "cluster.exclude": "a1", "rendezvous.backend": "etcd"},
    {"container.shm_size": "1g"},
    {"container.engine": "docker", "container.extra": ["-v", "data:/data"]},
    {**COMMAND, "task.command": "LR=1 python train.py"},
    {**COMMAND, "task.command": "python a.py\npython b.py\n", "debug.rank": 0},
    {"task.args": {"x": ["-a"]}, "task.module": "train"},
    {"task.script": "train.sh", "task.args": "a 'b", "task.args_style": "raw"},
    {"task.local_rank_arg": "--local_rank", "torchrun.monitor_interval": 1, **PLAIN},
    {"task.decides": "master", "torchrun.max_restarts": 2, "task.args_expand": True},
    {**TWO, **PLAIN, "task.decides": "a3", "rendezvous.backend": "standalone"},
    {**SLURM, "cluster.nodes": {"gpu1": {}}, "cluster.master": "gpu1"},
]


@pytest.mark.promise(8)
def test_every_refusal_says_where_what_and_what_next(check_screen: Check) -> None:
    """One mistake is one problem, all are told at once, and a secret is in none of them."""
    page = []
    for changes in CASES:
        asked = ", ".join(f"{key}: {value!r}" for key, value in changes.items())
        problems = problems_of(changes, ENVIRON)
        assert SECRET not in "".join(problems)
        page.append(f"{asked}\n" + "".join(f"error: {problem}\n" for problem in problems))

    check_screen("refusals.txt", "\n".join(page).replace(SECRET, "***"))
