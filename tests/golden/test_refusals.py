"""Every refusal of a configuration, word for word, on one page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.conftest import Check
from tests.unit.config.test_config import problems_of

SECRET = "hunter2"
ENVIRON = {"RANK": "0", "TOKEN": SECRET}
PLAIN = {"task.entry": "plain"}
SRUN = {"task.entry": "srun"}
C10D = {"rendezvous.backend": "c10d"}
TWO: dict[str, Any] = {"cluster.nodes": {"a1": {}, "a2": {}}}
RANGE: dict[str, Any] = {"cluster.nodes": {"gpu1": {}, "gpu2": {}, "gpu[03-16]": {}}}
SLURM = {
    "cluster.scheduler": "slurm",
    "cluster.nodes": 4,
}
IMAGE = {"container.engine": "apptainer", "container.image": "/images/train.sif"}
DOCKER = {"container.engine": "docker", "container.image": "bare"}
COMMAND = {"task.script": None, "task.command": "python train.py"}

Changes = dict[str, Any]

SETTINGS: list[Changes] = [
    {"cluster.backend": "x", "lost_s": -1, "task.args": {"a": {"b": 1}}},
    {"cluster.backend": "ncll"},
    {"disconnect_s": "soon"},
    {"torchrun.max_restarts": 2},
    {"dry_run": [False, "json"]},
    {"grace_s": 0},
    {"sample_s": 0.5},
    {"cluster.nproc_per_node": 0},
    {"cluster.master_port": "29600-29500"},
    {"cluster.ssh.key": "/no/key"},
    {"cluster.workdir": "a\nb"},
    {"cluster.setup": [["x"]]},
    {"console_ranks": [0, -1]},
    {"run_id": "A_b"},
    {"cluster.env": {"A-B": 1}},
    {"cluster.env": {"MASTER_PORT": 1}},
    {"cluster.pass_env": ["RANK"]},
    {"cluster.pass_env": ["NOT_SET"], "cluster.secrets": "NOT_SET_EITHER"},
    {
        "cluster.secrets": ["TOKEN"],
        "cluster.pass_env": ["TOKEN"],
        "cluster.nodes": {"gpu1": {"env": {"TOKEN": "x"}}},
    },
    {"cluster.secrets": ["TOKEN"], "notify": f"mail {SECRET}"},
    {"notify": "https://ntfy.sh/my-runs"},
    {**IMAGE, "container.shm_size": "16g"},
    {**IMAGE, "container.mounts": ["/data,old:/data"]},
    {"progress.pattern": r"epoch \d+"},
    {"container.image": "bare", "container.shm_size": "1g"},
    {**DOCKER, "container.engine": "dokcer"},
    {**DOCKER, "container.image": None},
    {**DOCKER, "container.mounts": ["data:/data", "/a:/b:rx"]},
    {**DOCKER, "container.extra": ["-v", "data:/data"]},
    {"debug.rank": 0, **COMMAND, "task.command": "hostname"},
]
TASKS: list[Changes] = [
    {"task.env": {"RUNNER_NODE": None}},
    {"task.env": {"A": [1]}},
    {"task.script": None},
    {"task.module": "train"},
    {"task.script": None, "task.module": "train.py"},
    {"task.script": None, "task.command": "echo 'a"},
    {**COMMAND, "task.command": "LR=1 python train.py"},
    {**COMMAND, "task.command": 'echo "it\'s ${HOME}" > log'},
    {**COMMAND, "task.command": "python a.py\npython b.py\n"},
    {"task.args": "--lr 1\n--out ~/x", "task.args_style": "raw"},
    {"task.script": "a b.ipynb"},
    {"task.script": "train.sh"},
    {"task.outputs": ["/data/x"]},
    {"task.outputs": ["fine", "a/../../x"]},
    {"task.args": {"x": ["-a"]}},
    {"task.args": {"x": [1, 2]}, "task.args_style": "equals"},
    {"task.args": {"a b": 1}},
    {"task.args": {"a b": 1}, "task.args_style": "hydra"},
    {"task.args": {"a": "\0"}, "task.args_style": "hydra"},
    {"task.args": ["a"], "task.args_style": "hydra"},
    {"task.args": "a 'b", "task.args_style": "raw"},
    {"task.local_rank_arg": "local rank"},
    {"task.local_rank_arg": "--local_rank", "task.entry": "launch"},
    {"task.local_rank_arg": "--local_rank", **PLAIN},
    {"cluster.nodes": {"gpu[1-2]": {}, "gpu2": {"nproc_per_node": 3}}, **PLAIN},
    {**C10D, **PLAIN},
    {"torchrun.monitor_interval": 1, **PLAIN},
    {"task.args_expand": True, "task.entry": "launch"},
    {"task.decides": "master"},
    {**TWO, **PLAIN, "task.decides": "a3"},
    SRUN,
]
RENDEZVOUS: list[Changes] = [
    {**TWO, "task.nnodes": 0},
    {**TWO, "task.nnodes": 3},
    {**TWO, **C10D, "task.nnodes": "2:5"},
    {**TWO, "task.nnodes": "1:2"},
    {**TWO, "rendezvous.backend": "etcd"},
    {**TWO, "rendezvous.backend": "etcd-v2", "rendezvous.endpoint": "etcd1"},
    {**TWO, **C10D, "rendezvous.endpoint": "etcd1:2379"},
    {**TWO, "rendezvous.backend": "standalone"},
    {**TWO, **C10D, "torchrun.rdzv_conf": {"is_host": 1}},
    {"torchrun.signals_to_handle": ["SIGUSR1"]},
]
NODES: list[Changes] = [
    {"cluster.nodes": {}},
    {"cluster.nodes": ["a"]},
    {"cluster.nodes": {"a": {"gpu": 1}}},
    {"cluster.nodes": {"a": "10.0.0.1"}},
    {"cluster.nodes": {"a b": {}}},
    {"cluster.nodes": {"gpu[1-": {}}},
    {"cluster.nodes": {"a": {"host": "-oX"}}},
    {"cluster.nodes": {"a": {"host": f"ada:{SECRET}@10.0.0.1"}}},
    {"cluster.nodes": {"a": {"host": "ada@10.0.0.3:22", "addr": "10.0.0.4:29500"}}},
    {"cluster.nodes": {"a": {"gpus": [1, 1]}}},
    {"cluster.nodes": {"gpu[1-2]": {"env": {"RANK": 0}}}},
    {"cluster.nodes": {"a": {"host": "x"}, "b": {"host": "x"}}},
    {**RANGE, "cluster.only": ["gpu01"]},
    {**TWO, "cluster.exclude": ["a[1-2]"]},
    {**TWO, "cluster.master": "a3"},
    {**TWO, "cluster.master": "a1", "cluster.exclude": "a1"},
]
JOBS: list[Changes] = [
    {"cluster.slurm.time": "1:3"},
    {"cluster.slurm.signal": "SIGKILL"},
    {"cluster.slurm.extra": ["--exclusive", "--signal=B:USR1@60"]},
    {"cluster.nodes": {"gpu1": {}}},
    {"cluster.nodes": 0},
    {"cluster.only": ["gpu1"]},
    {"task.nodes": ["gpu1"]},
    {**PLAIN, "task.decides": "gpu1"},
    {"cluster.master": "gpu1"},
    {**SRUN, "task.local_rank_arg": "--local-rank"},
    {**SRUN, **C10D},
]


@pytest.mark.promise(8)
def test_every_refusal_says_where_what_and_what_next(check_screen: Check) -> None:
    """One mistake is one problem, all are told at once, and a secret is in none of them."""
    page = []
    for changes in [*SETTINGS, *TASKS, *RENDEZVOUS, *NODES, *({**SLURM, **job} for job in JOBS)]:
        asked = ", ".join(f"{key}: {value!r}" for key, value in changes.items())
        problems = problems_of(changes, ENVIRON)
        assert SECRET not in "".join(problems)
        page.append(f"{asked}\n" + "".join(f"error: {problem}\n" for problem in problems))

    check_screen("refusals.txt", "\n".join(page).replace(SECRET, "***"))
