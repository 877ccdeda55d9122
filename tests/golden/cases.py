"""Launches whose plans are on record: the request, and the hosts' facts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.control.assumed_facts import assumed_facts
from runner.core.planning.build_plan import build_plan
from runner.core.spec import (
    Deploy,
    Node,
    PortRange,
    Relaunch,
    Rendezvous,
    Secret,
    Spec,
    Task,
    Torchrun,
)
from runner.core.wire.facts import Facts
from runner.core.wire.plan import CodeRef, Plan
from runner.ui.reports.report import render_dry_run
from tests.golden.builders import SHIPPED, TASKS_HASH, facts, spec

DOCKER = "docker0 172.17.0.1/16"


@dataclass(frozen=True)
class Case:
    """The plan of one launch, and what is assumed where no host was asked."""

    name: str
    plan: Plan
    assumed: list[str]

    def text(self) -> str:
        return render_dry_run(self.plan, self.assumed) + "\n"


def planned(name: str, run_spec: Spec, *hosts: Facts, code: CodeRef | None = None) -> Case:
    """A launch of which these hosts have told their facts; without any it is planned offline."""
    told = {host.node: host for host in hosts}
    assumed: list[str] = []
    if not told:
        run_spec, told, assumed = assumed_facts(run_spec)
    code = code or CodeRef(tasks_hash=TASKS_HASH if run_spec.task.shipped_file else "")
    return Case(name, build_plan(run_spec, told, code=code), assumed)


def _shared_rack(count: int, gpu_count: int) -> tuple[Facts, ...]:
    return tuple(
        facts(
            f"gpu{n}", f"eth0 192.168.1.{100 + n}/24", DOCKER, gpu_count=gpu_count, gateway="eth0"
        )
        for n in range(1, count + 1)
    )


def _rack_nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(f"gpu{n}", f"192.168.1.{100 + n}") for n in range(1, count + 1))


ONE_NODE = planned(
    "one-node",
    spec(
        Node("local", "127.0.0.1", transport="local", nproc_per_node=2),
        task=SHIPPED,
        cluster="local",
    ),
    facts("local", "eth0 192.168.1.7/24", cores=8, ssh_address="", project=""),
)


CHOSEN_GPUS = planned(
    "chosen-gpus",
    spec(
        Node("gpu1", "192.168.1.101", gpus=(0, 2)),
        Node("gpu2", "192.168.1.102", gpus=4),
        Node("gpu3", "192.168.1.103", gpus=1),
    ),
    *_shared_rack(2, gpu_count=8),
    facts(
        "gpu3",
        "eth0 192.168.1.103/24",
        gpu_count=8,
        preset_env={"CUDA_VISIBLE_DEVICES": "GPU-0006-a100,7"},
    ),
)


SETTINGS = planned(
    "settings",
    spec(
        Node("gpu1", "192.168.1.101", env={"OMP_NUM_THREADS": "3"}),
        Node("gpu2", "192.168.1.102", env={"NCCL_IB_DISABLE": "1", "LEVEL": "node"}),
        env={"NCCL_SOCKET_IFNAME": "^docker0,lo", "LEVEL": "cluster", "DATA": "/data/my digits"},
        task=Task(name="train", kind="script", target="train.py", env={"LEVEL": "task"}),
        secrets={"WANDB_API_KEY": Secret("hunter2"), "HF_TOKEN": Secret("hunter3")},
    ),
    *_shared_rack(1, gpu_count=4),
    replace(
        _shared_rack(2, gpu_count=4)[1],
        preset_env={"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "ib0"},
    ),
)


HARD_ARGUMENTS = planned(
    "hard-arguments",
    spec(
        Node("gpu1", "192.168.1.101"),
        task=Task(
            name="train",
            kind="script",
            target="my train.py",
            words=(
                *("--price", "$5 & up", "--quote", 'it\'s "so"', "--lines", "one\ntwo"),
                *("--empty", "", "--glob", "*.py", "--home", "~/data", "--back", "a\\b"),
                *("--local_rank=${local_rank}", "--not-mine", "$local_rank", "--twice", "$$"),
                *("--", "-x", "größer"),
            ),
        ),
    ),
    facts("gpu1", "eth0 192.168.1.101/24", gpu_count=2, project="/home/ada/my digits"),
)

OFFLINE = planned(
    "offline",
    spec(
        Node("gpu1", "192.168.1.101", gpus=(0, 2)),
        Node("gpu2", "192.168.1.102"),
        python="~/venv/bin/python",
        task=SHIPPED,
    ),
)

PUSHED = planned(
    "pushed",
    spec(
        *_rack_nodes(2),
        task=Task(name="train", kind="script", target="/home/ada/digits/train.py"),
        setup=("module load cuda",),
        deploy=Deploy(enabled=True),
    ),
    *(
        replace(host, project="", has_release=host.node == "gpu1")
        for host in _shared_rack(2, gpu_count=1)
    ),
    code=CodeRef(
        release="0123456789abcdef",
        subdirectory="exp/a b",
        script="../../train.py",
        commit=f"{7:040x}+",
    ),
)


C10D_ELASTIC = planned(
    "c10d-elastic",
    spec(
        *_rack_nodes(3),
        rendezvous=Rendezvous("c10d"),
        min_nodes=2,
        torchrun=Torchrun(
            max_restarts=3,
            rdzv_conf={"join_timeout": "900"},
            extra=("--numa-binding=socket", "--role=trainer"),
        ),
    ),
    *_shared_rack(3, gpu_count=2),
)


ETCD = planned(
    "etcd",
    spec(*_rack_nodes(2), rendezvous=Rendezvous("etcd-v2", endpoint="etcd1:2379")),
    *(replace(host, reserved_port=0) for host in _shared_rack(2, gpu_count=2)),
)


RELAUNCH = planned(
    "relaunch",
    spec(
        *(_rack_nodes(2)[::-1]),
        spares=_rack_nodes(3)[2:],
        relaunch=Relaunch(max=2),
        master_port=PortRange(29500, 29600),
    ),
    *(replace(host, reserved_port=29503) for host in _shared_rack(2, gpu_count=2)),
)


CASES = [value for value in globals().values() if isinstance(value, Case)]
