"""A cluster that Slurm schedules: what its YAML asks of a job, and what it cannot ask."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config import slurm as slurm_module
from runner.config.spec_builder import build_spec
from runner.core.model.slurm import SlurmSpec
from runner.core.model.spec import Node, Spec
from tests.unit.config import test_config

SLURM: dict[str, Any] = {
    "cluster.scheduler": "slurm",
    "cluster.login_node": "hpc.example",
    "cluster.nodes": 4,
}
ELSEWHERE: dict[str, Any] = {"cluster.nodes": {"gpu1": {}}, "cluster.login_node": None}
OTHERS = (
    *("partition", "account", "qos", "time", "constraint", "nodelist", "reservation"),
    *("licenses", "gres", "cpus_per_rank", "mem_per_rank"),
)


def spec_of(changes: dict[str, Any]) -> Spec:
    """The spec of a cluster of Slurm with these changes."""
    return test_config.spec_of({**SLURM, **changes})


def job_of(changes: dict[str, Any]) -> SlurmSpec:
    """What its job asks for."""
    slurm = spec_of(changes).slurm
    assert slurm is not None
    return slurm


def problems_of(changes: dict[str, Any]) -> list[str]:
    """What is wrong with these changes, each with its hint in one line."""
    return [text.replace("\n    ", "; ") for text in test_config.problems_of({**SLURM, **changes})]


def test_nodes_are_those_of_slurm() -> None:
    """The spec has the login node alone, and the job so many nodes."""
    spec = spec_of({"cluster.gpus_per_node": 8, "cluster.nproc_per_node": 4})
    login = Node(name="login", host="hpc.example", gpu_count=8, nproc=4)
    assert (spec.nodes, spec.spares, spec.min_nodes) == ((login,), (), None)
    assert spec.slurm == SlurmSpec(nnodes=4)


def test_a_cluster_without_slurm_has_none() -> None:
    """Whatever its section says: `scheduler` decides."""
    assert test_config.spec_of({"cluster.slurm.partition": "gpu"}).slurm is None


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("partition", "gpu,long", "partition", "gpu,long"),
        ("account", "acme", "account", "acme"),
        ("qos", "high", "qos", "high"),
        ("time", "2:30:00", "time", "2:30:00"),
        ("time", "90", "time", "90"),
        ("time", "1-12", "time", "1-12"),
        ("time", "30:00", "time", "30:00"),
        ("constraint", "a100&ib", "constraint", "a100&ib"),
        ("nodelist", "n[1-2]", "nodelist", "n[1-2]"),
        ("reservation", "course", "reservation", "course"),
        ("licenses", "foo:4", "licenses", "foo:4"),
        ("gres", "gpu:a100:4", "gres", "gpu:a100:4"),
        ("cpus_per_rank", 6, "cpus_per_rank", 6),
        ("mem_per_rank", "8G", "mem_per_rank", "8G"),
        ("signal", "SIGUSR2", "signal", "SIGUSR2"),
        ("signal_before", 120, "signal_before_s", 120),
        ("requeue", True, "requeue", True),
        ("srun", ["--container-image=a"], "srun", ("--container-image=a",)),
        ("extra", ["--exclusive", "--mail-type=END"], "extra", ("--exclusive", "--mail-type=END")),
    ],
)
def test_every_key_reaches_the_job(key: str, value: object, field: str, expected: object) -> None:
    """What the YAML says is what sbatch is asked for; nothing else is."""
    assert job_of({f"cluster.slurm.{key}": value}) == SlurmSpec(nnodes=4, **{field: expected})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", OTHERS)
def test_null_leaves_it_to_the_site(key: str) -> None:
    """As if the key was not there."""
    assert job_of({f"cluster.slurm.{key}": None}) == SlurmSpec(nnodes=4)


def test_excluded_nodes_are_slurms() -> None:
    """Ranges are written as Slurm takes them."""
    assert job_of({"cluster.exclude": ["n1", "n[3-5]"]}).exclude == "n1,n[3-5]"


TIME = (
    "cluster.slurm.time: must be a text such as '2:30:00' or '1-12:00:00', not {}; "
    'in quotes, since YAML takes 2:30:00 for a number; "90" is 90 minutes'
)
MEMORY = "cluster.slurm.mem_per_rank: must be a number with K, M, G or T such as 8G, not {}"
SIGNAL = "cluster.slurm.signal: {} is no signal that a program can handle; such as SIGUSR2"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("time", 9000, TIME.format(9000)),
        ("time", "two hours", TIME.format("'two hours'")),
        ("time", "1:2:3:4", TIME.format("'1:2:3:4'")),
        ("time", "-5", TIME.format("'-5'")),
        ("time", "1-2-3", TIME.format("'1-2-3'")),
        ("time", "1:3", TIME.format("'1:3'")),
        ("mem_per_rank", 8, MEMORY.format(8)),
        ("mem_per_rank", "8GB", MEMORY.format("'8GB'")),
        ("mem_per_rank", "0G", MEMORY.format("'0G'")),
        ("mem_per_rank", "1.5G", MEMORY.format("'1.5G'")),
        ("signal", "SIGKILL", SIGNAL.format("SIGKILL")),
        ("signal", "SIGSTOP", SIGNAL.format("SIGSTOP")),
        ("signal", "USR1", SIGNAL.format("USR1")),
        ("signal", 10, SIGNAL.format(10)),
        ("signal_before", 0, "cluster.slurm.signal_before: must be a whole number from 1, not 0"),
        ("cpus_per_rank", 0, "cluster.slurm.cpus_per_rank: must be a whole number from 1, not 0"),
    ],
)
def test_what_sbatch_would_not_take(key: str, value: object, problem: str) -> None:
    """It is refused here, with what can be written in its place."""
    assert problems_of({f"cluster.slurm.{key}": value}) == [problem]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        *(("", 0), ("90", 5400), ("30:15", 1815), ("2:30:00", 9000)),
        *(("1-12", 129600), ("1-12:30", 131400), ("1-12:30:05", 131405), ("0", 0)),
    ],
)
def test_a_time_limit_as_sbatch_reads_it(time: str, seconds: int) -> None:
    """A number is minutes; what follows a day begins with hours."""
    assert slurm_module._seconds(time) == seconds


@pytest.mark.parametrize(("time", "fits"), [("3", False), ("3:01", True), (None, True)])
def test_a_signal_leaves_time_to_work(time: str | None, *, fits: bool) -> None:
    """Slurm may send it a minute early: with 120 s, a limit of 3 minutes is one signal only."""
    changes = {"cluster.slurm.time": time, "cluster.slurm.signal_before": 120}
    if fits:
        assert job_of(changes).signal_before_s == 120
        return
    message = "120 s, and the minute that Slurm may be early, are the whole time limit"
    hint = "lower it, or raise slurm.time"
    assert problems_of(changes) == [f"cluster.slurm.signal_before: {message}; {hint}"]


@pytest.mark.parametrize(
    ("cluster", "task", "relaunch", "expected"),
    [
        ({}, None, 0, (1, 0, None)),
        (3, None, 0, (3, 0, None)),
        (3, None, 2, (3, 0, None)),
        ("2:4", None, 0, (4, 0, 2)),
        (3, 2, 0, (2, 0, None)),
        (3, 2, 1, (3, 1, None)),
        (3, 4, 1, (4, 0, None)),
        (3, "2:3", 0, (3, 0, 2)),
        ("auto", None, 0, (1, 0, None)),
    ],
)
def test_how_many_nodes_a_job_gets(
    cluster: object, task: object, relaunch: int, expected: tuple[int, int, int | None]
) -> None:
    """The task's number counts; what the cluster has beyond it is spare if the run relaunches."""
    changes = {"cluster.nodes": cluster, "task.nnodes": task, "relaunch.max": relaunch}
    spec = spec_of({**changes, "rendezvous.backend": "c10d"})
    assert spec.slurm is not None
    assert (spec.slurm.nnodes, spec.slurm.spares, spec.min_nodes) == expected


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"cluster.nodes": {"gpu1": {}}},
            (
                "cluster.nodes: with slurm this is how many nodes a job gets, not which; "
                "such as nodes: 4"
            ),
        ),
        (
            {"cluster.nodes": "4:2"},
            (
                "cluster.nodes: must be a number of nodes, or a range such as 2:4, not '4:2'; "
                "the fewest come first, from 1"
            ),
        ),
        (
            {
                **{"cluster.nodes": 4, "task.nnodes": "2:3", "relaunch.max": 1},
                "rendezvous.backend": "c10d",
            },
            (
                "task.nnodes: a range of nodes has no spares: what is there takes part; "
                "set one number, or relaunch.max=0"
            ),
        ),
        (
            {"cluster.slurm.extra": ["--exclusive", "--signal=B:USR1@60"]},
            ("cluster.slurm.extra: --signal is the runner's own part; set slurm.signal_before"),
        ),
        (
            {"rendezvous.backend": "etcd-v2", "rendezvous.serve": "login"},
            (
                "rendezvous.serve: Slurm chooses the nodes, whose names are not known before; "
                "set rendezvous.endpoint to an etcd that runs, or choose rendezvous=c10d"
            ),
        ),
        (
            {"cluster.only": ["gpu1"]},
            (
                "cluster.only: Slurm chooses the nodes; set cluster.slurm.nodelist to nodes that "
                "the job must get"
            ),
        ),
        (
            {"task.nodes": ["gpu1"]},
            (
                "task.nodes: Slurm chooses the nodes; set cluster.slurm.nodelist to nodes that "
                "the job must get"
            ),
        ),
        (
            {"cluster.master": "gpu1"},
            "cluster.master: Slurm chooses the nodes; the first node of the job has rank 0",
        ),
        (
            {"cluster.gpus_per_node": 4, "cluster.slurm.gres": "gpu:4"},
            "cluster.slurm.gres: set one of gpus_per_node and gres: both ask for GPUs",
        ),
        (
            {"cluster.nodes": 0},
            "cluster.nodes: must be a whole number from 1, or auto, not 0",
        ),
        (
            {"cluster.login_node": None},
            (
                "cluster.login_node: cluster lab names no machine that has sbatch; such as "
                "login_node: hpc.example; or cluster.transport=local on the login node"
            ),
        ),
        (
            {"cluster.transport": "local"},
            (
                "cluster.login_node: with transport local this machine is the login node; "
                "leave it out, or set cluster.transport=ssh"
            ),
        ),
        (
            {"rendezvous.backend": "standalone"},
            (
                "rendezvous.backend: standalone is for one node alone, and 4 are to be used; "
                "choose rendezvous=static or c10d, or set task.nnodes=1"
            ),
        ),
        (
            {"task.entry": "srun", "task.local_rank_arg": "--local-rank"},
            (
                "task.local_rank_arg: entry srun replaces nothing in arguments: ranks read "
                "LOCAL_RANK; choose task.entry=torchrun, or leave it out"
            ),
        ),
        (
            {"task.entry": "srun", "rendezvous.backend": "c10d"},
            (
                "rendezvous.backend: c10d is torchrun's, and entry srun starts none; "
                "choose rendezvous=static, or task.entry=torchrun"
            ),
        ),
        (
            {"task.entry": "srun", "torchrun.monitor_interval": 3},
            (
                "torchrun.monitor_interval: entry srun starts no torchrun; "
                "leave it out, or set task.entry=torchrun"
            ),
        ),
    ],
)
def test_what_a_job_cannot_be(changes: dict[str, Any], problem: str) -> None:
    """Each refusal names its key, and what to do."""
    assert problems_of(changes) == [problem]


def test_other_resources_go_with_gpus() -> None:
    """Only GPUs could be asked for twice."""
    job = job_of({"cluster.gpus_per_node": 4, "cluster.slurm.gres": "nvme:1"})
    assert job.gres == "nvme:1"


def test_this_machine_may_be_the_login_node() -> None:
    """Then it needs no name."""
    (login,) = spec_of({"cluster.transport": "local", "cluster.login_node": None}).nodes
    assert (login.name, login.transport) == ("login", "local")


def test_ranks_like_tasks_of_srun_are_slurms() -> None:
    """With several on a node; elsewhere that entry is refused."""
    spec = spec_of({"task.entry": "srun", "cluster.nproc_per_node": 4})
    assert spec.task.without_torchrun
    assert not spec.task.is_plain
    assert problems_of({"cluster.scheduler": "direct", **ELSEWHERE, "task.entry": "srun"}) == [
        (
            "task.entry: srun is for clusters that Slurm schedules; "
            "choose task.entry=torchrun or plain, or a cluster with scheduler: slurm"
        )
    ]


def test_jobs_of_a_sweep_may_be_in_the_queue_at_once() -> None:
    """Those without Slurm have the same hosts."""
    options = build_spec(test_config.asked({**SLURM, "sweep.parallel": 3}), [])[1]
    assert options["sweep_parallel"] == 3
    message = "the runs of a sweep share the hosts, and are started one after the other"
    direct = {"cluster.scheduler": "direct", **ELSEWHERE, "sweep.parallel": 3}
    hint = "it is for clusters with scheduler: slurm"
    assert problems_of(direct) == [f"sweep.parallel: {message}; {hint}"]
