"""Rendezvous flags of torchrun: one function per backend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

from runner.core.spec import Spec
from runner.core.text import bracket_ipv6

NO_SHARED_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For nodes that come and go: torch would keep the address of the first store
(`_bootstrap_store_info` in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py), and the
remaining nodes would look for a rank 0 that has left."""

ADDED_IN = {
    "local_addr": (2, 0),
    "numa_binding": (2, 9),
    "signals_to_handle": (2, 10),
    "shutdown_timeout": (2, 12),
}
"""The first torch whose torchrun has an option; all others are older than 1.12.

Read in torch/distributed/run.py of the wheels of 1.12.0, 1.13.0 and 2.0.0 to 2.12.0 on PyPI.
"""


@dataclass(frozen=True)
class NodePosition:
    """One node's place in the rendezvous of an attempt."""

    index: int  # among the nodes; the master has 0
    nproc: int
    addr: str  # the master's
    port: int  # there
    local_addr: str = ""  # at which others reach its ranks
    attempt: int = 0  # the run's n-th start
    first_rank: int = 0  # on this node, where the plan assigns the ranks
    world_size: int = 1


def flags(spec: Spec, position: NodePosition) -> Tuple[str, ...]:
    """Return torchrun's options for one node, in the order a person would type them."""
    return (*BACKENDS[spec.rendezvous.backend](spec, position), *_extra_flags(spec))


def torch_version(torch: str) -> Optional[Tuple[int, int]]:
    """Return the first two numbers of a version, None if it cannot be parsed."""
    match = re.match(r"(\d+)\.(\d+)", torch)
    return (int(match[1]), int(match[2])) if match else None


def unsupported_options(spec: Spec, torch: str) -> List[Tuple[str, str, str]]:
    """Return the options that a torch lacks: the key, the first torch that has it, the next step.

    A version that cannot be parsed counts as new enough.
    """
    version = torch_version(torch)
    if version is None:
        return []
    requested = {
        "local_addr": spec.rendezvous.backend != "static",
        "numa_binding": bool(spec.torchrun.numa_binding),
        "signals_to_handle": bool(spec.torchrun.signals_to_handle),
        "shutdown_timeout": spec.torchrun.shutdown_timeout is not None,
    }
    unsupported = []
    for name, since in ADDED_IN.items():
        if requested[name] and version < since:
            key = f"torchrun.{name}"
            hint = f"leave it out ({key}=null), or install a newer torch"
            if name == "local_addr":
                key = f"rendezvous={spec.rendezvous.backend} (--local_addr)"
                hint = "install a newer torch there, or set rendezvous=static"
            unsupported.append((key, f"{since[0]}.{since[1]}", hint))
    return unsupported


def _static(spec: Spec, position: NodePosition) -> Tuple[str, ...]:
    """Give every node its rank and the address of the store.

    `--max_restarts` is always 0: torch has one store without a prefix per restart there, so
    restarted workers would read stale keys (torch/distributed/elastic/rendezvous/
    static_tcp_rendezvous.py). We relaunch instead.
    """
    return (
        f"--nnodes={len(spec.nodes)}",
        f"--nproc_per_node={position.nproc}",
        f"--node_rank={position.index}",
        f"--master_addr={position.addr}",
        f"--master_port={position.port}",
        _id_flag(spec, position),
        *_conf_flag(spec),
        "--max_restarts=0",
    )


def _standalone(spec: Spec, position: NodePosition) -> Tuple[str, ...]:
    """Let the torchrun of a single node choose a port and an id."""
    return (
        "--standalone",
        f"--nproc_per_node={position.nproc}",
        f"--local_addr={position.addr}",
        *_conf_flag(spec),
        f"--max_restarts={spec.torchrun.max_restarts}",
    )


def _c10d(spec: Spec, position: NodePosition) -> Tuple[str, ...]:
    """Put the store on the master; torch would guess from host names who opens it."""
    endpoint = f"{bracket_ipv6(position.addr)}:{position.port}"
    return _dynamic(spec, position, endpoint, is_host="1" if position.index == 0 else "0")


def _etcd(spec: Spec, position: NodePosition) -> Tuple[str, ...]:
    """Use an etcd that somebody keeps running."""
    return _dynamic(spec, position, spec.rendezvous.endpoint)


def _dynamic(
    spec: Spec, position: NodePosition, endpoint: str, **rdzv_conf: str
) -> Tuple[str, ...]:
    max_nodes = spec.max_nodes or len(spec.nodes)
    range_start = "" if spec.min_nodes in (None, max_nodes) else f"{spec.min_nodes}:"
    return (
        f"--nnodes={range_start}{max_nodes}",
        f"--nproc_per_node={position.nproc}",
        f"--rdzv_backend={spec.rendezvous.backend}",
        f"--rdzv_endpoint={endpoint}",
        _id_flag(spec, position),
        *_conf_flag(spec, **rdzv_conf),
        *([f"--local_addr={position.local_addr}"] if position.local_addr else []),
        f"--max_restarts={spec.torchrun.max_restarts}",
    )


def _id_flag(spec: Spec, position: NodePosition) -> str:
    """Name the rendezvous, differently in every attempt."""
    suffix = f"-{position.attempt}" if position.attempt else ""
    return f"--rdzv_id={spec.run_id}{suffix}"


def _conf_flag(spec: Spec, **overrides: str) -> Tuple[str, ...]:
    settings = {**spec.torchrun.rdzv_conf, **overrides}
    words = ",".join(f"{name}={value}" for name, value in settings.items())
    return (f"--rdzv_conf={words}",) if words else ()


def _extra_flags(spec: Spec) -> Tuple[str, ...]:
    """Return torchrun's other options, as far as they are set."""
    options = spec.torchrun
    interval = options.monitor_interval
    chosen = {
        "monitor_interval": "" if interval is None else f"{interval:g}",
        "role": options.role,
        "start_method": options.start_method,
        "signals_to_handle": ",".join(options.signals_to_handle),
        "numa_binding": options.numa_binding,
    }
    return tuple(f"--{name}={value}" for name, value in chosen.items() if value)


BACKENDS: Dict[str, Callable[[Spec, NodePosition], Tuple[str, ...]]] = {
    "static": _static,
    "standalone": _standalone,
    "c10d": _c10d,
    "etcd": _etcd,
    "etcd-v2": _etcd,
}
