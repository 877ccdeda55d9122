"""Builders of specs, facts and plans for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from runner.checks.base import NetworkProbe
from runner.core.launch_request import LaunchRequest
from runner.core.planning.build_plan import build_plan
from runner.core.planning.endpoints import Endpoint
from runner.core.spec import Cluster, Node, Spec, Task, keys_of
from runner.core.wire.facts import (
    Facts,
    Gpu,
    Interface,
    Interpreter,
    Outcome,
    ProbeResult,
    Route,
    Target,
)
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind
from runner.core.wire.text import describe_exit

RUN_ID = "0314-1592-digits-65a3"
TASKS_HASH = "0123456789abcdef"
LO = Interface("lo", ("127.0.0.1/8", "::1/128"), loopback=True)
SCRIPT = Task(name="train", kind="script", target="train.py")
SHIPPED = Task(name="resnet18", kind="module", target="runner.tasks.resnet18")
TORCH = Interpreter("/opt/venv/bin/python", "3.11.7", "2.13.0+cu128", "12.8")


def gpus(count: int) -> tuple[Gpu, ...]:
    """So many GPUs of one kind."""
    return tuple(Gpu(index, "NVIDIA A100", f"GPU-{index:04x}-a100") for index in range(count))


def interface(text: str, *, up: bool = True) -> Interface:
    """An interface written as "eth0 10.0.0.1/24 fd00::1/64"."""
    name, *addresses = text.split()
    return Interface(name, tuple(addresses), up=up)


def facts(
    node: str, *interfaces: str, gpu_count: int = 0, gateway: str = "", **others: Any
) -> Facts:
    """A healthy host: its routes follow from its interfaces, the last resort is `gateway`.

    It was reached at its first address, and holds a port in case it is the master.
    """
    own_interfaces = tuple(interface(text) for text in interfaces)
    networks = [
        (each.name, ip_interface(text).network)
        for each in own_interfaces
        for text in each.addresses
    ]
    routes = [Route(str(net), name) for name, net in networks]
    if gateway:
        routes.append(Route("0.0.0.0/0", gateway, 100))
    healthy = Facts(
        node=node,
        hostname=node,
        user="ada",
        home="/home/ada",
        python=TORCH,
        gpus=gpus(gpu_count),
        gpu_source="nvml" if gpu_count else "none",
        interfaces=(LO, *own_interfaces),
        routes=tuple(routes),
        ssh_address=own_interfaces[0].addresses[0].partition("/")[0] if own_interfaces else "",
        cores=16,
        reserved_port=29512,
        workdir="/home/ada/.runner",
        disk_free=100 << 30,
        project="/home/ada/digits",
    )
    return replace(healthy, **others)


OF_CLUSTER = keys_of(Cluster).keys() - {option.name for option in fields(Spec)}


def spec(
    *nodes: Node, task: Task = SCRIPT, cluster: str = "lab", python: str = "", **others: Any
) -> Spec:
    """A run of `task` on `nodes`; some keys of the cluster may be given as its own."""
    of_cluster = {name: others.pop(name) for name in OF_CLUSTER & others.keys()}
    of_cluster = {"name": cluster, "project": "/home/ada/digits", **of_cluster}
    if "slurm" in of_cluster:
        of_cluster["scheduler"] = "slurm"
    if python:
        nodes = tuple(replace(node, python=python) for node in nodes)
    return Spec(
        **{"run_id": RUN_ID, **others},
        nodes=nodes,
        task=task,
        cluster=Cluster(**of_cluster),
    )


def request(run_dir: Path, config_yaml: str = "seed: 1\n", **fields: Any) -> LaunchRequest:
    """What a launch asks for whose record is in that folder; `fields` are those of its spec."""
    asked = spec(Node("a", "gpu-a"), **{"run_id": run_dir.name, **fields})
    return LaunchRequest(asked, run_dir, config_yaml)


def plan(*ranks: int) -> Plan:
    """A plan on nodes a, b, … with so many ranks each."""
    names = "abcdefgh"[: len(ranks)]
    hosts = [f"10.0.0.{number}" for number in range(1, len(ranks) + 1)]
    return build_plan(
        spec(
            *(
                Node(name, host, nproc_per_node=count)
                for name, host, count in zip(names, hosts, ranks, strict=True)
            )
        ),
        {name: facts(name, f"eth0 {host}/24") for name, host in zip(names, hosts, strict=True)},
    )


def network_probe(
    addresses: Mapping[str, str],
    pairs: Mapping[tuple[str, str], Outcome] | None = None,
    trips: Mapping[tuple[str, str], float] | None = None,
) -> NetworkProbe:
    """What nodes at these addresses found that tried each other, one way and the other."""
    targets = {
        node: Target(node, address, port)
        for port, (node, address) in enumerate(addresses.items(), 40001)
    }

    def contact(one: str, other: str) -> ProbeResult:
        outcome = (pairs or {}).get((one, other), Outcome.REACHED)
        return ProbeResult(targets[other], outcome, (trips or {}).get((one, other), 0.0002))

    found = {
        one: tuple(contact(one, other) for other in targets if other != one) for one in targets
    }
    network = str(ip_interface(f"{next(iter(addresses.values()))}/24").network)
    ends = {node: Endpoint("eth0", address, network) for node, address in addresses.items()}
    return NetworkProbe(ends, tuple(targets.values()), found)


def failed(node: str, rank: int, code: int | None, detail: str = "") -> Reason:
    """Why a run failed whose rank ended by `code`, or minus a signal."""
    signum = -code if code is not None and code < 0 else None
    words = detail or describe_exit(None if signum else code, signum)
    return Reason(ReasonKind.RANK, node, rank, code, words)


def lost(node: str, detail: str) -> Reason:
    """Why a run ended that lost a node."""
    return Reason(ReasonKind.LOST, node, detail=detail)


def own(node: str, detail: str) -> Reason:
    """Why a host stops by itself."""
    return Reason(ReasonKind.HOST, node, detail=detail)


def told(detail: str = "") -> Reason:
    """Why one stops on which nothing failed."""
    return Reason(ReasonKind.OTHER, detail=detail)


def asked(detail: str = "") -> Reason:
    """Why one stops as a user asked."""
    return Reason(ReasonKind.USER, detail=detail)
