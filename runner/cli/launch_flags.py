"""Values of a launcher's flags, counted and named as they are here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runner.config.overrides import hydra_value

_COUNT = (r"[1-9]\d*", "a number from 1")
_LEGAL = {
    **dict.fromkeys(("num_machines", "num_nodes", "num_gpus", "num_processes"), _COUNT),
    **dict.fromkeys(("master_port", "main_process_port"), (r"\d{1,5}", "a port")),
    "nnodes": (r"[1-9]\d*(:[1-9]\d*)?", "a number from 1, or a range such as 2:4"),
    "nproc_per_node": (r"[1-9]\d*|gpu|auto", "a number from 1, gpu or auto"),
    "rdzv_backend": ("static|c10d|etcd|etcd-v2", "static, c10d, etcd or etcd-v2"),
    "max_restarts": (r"\d+", "a number"),
}
"""What the values of flags match, and what these are called."""

_OF_SEVERAL = ("node_rank", "machine_rank", "master_addr", "main_process_ip", "rdzv_endpoint")
"""Flags of a line that is typed on several machines, if it does not say how many they are."""

_HERE = re.compile(r"localhost\b|127\.|\[?::1\b")


class NoCounterpartError(ValueError):
    """A flag of another launcher that nothing here says."""


def check_values(flags: Mapping[str, str]) -> None:
    """Raise a NoCounterpartError for the first value that none here is the same as."""
    for name, value in flags.items():
        pattern, legal = _LEGAL.get(name, (".*", ""))
        if not re.fullmatch(pattern, value):
            why = f"--{name}={value} has no counterpart here, where it is {legal}"
            raise NoCounterpartError(why)


def is_for_one_machine(flags: Mapping[str, str]) -> bool:
    """Return whether a line is for the machine on which it is typed alone."""
    counts = [flags[name] for name in ("nnodes", "num_machines", "num_nodes") if name in flags]
    if "hostfile" in flags or counts:
        return "hostfile" not in flags and counts[0] in ("1", "1:1")
    places = [flags[name] for name in _OF_SEVERAL if name in flags]
    return "standalone" in flags or all(map(_HERE.match, places))


def count_ranks(flags: dict[str, str]) -> None:
    """Count the ranks of a node, where a launcher counts its GPUs or the ranks of all nodes."""
    machines, count = int(flags.get("num_machines", "1")), flags.pop("num_processes", "")
    if not count and machines > 1:  # accelerate then shares the GPUs of one node among all
        why = f"for {machines} nodes it takes --num_processes, the number of ranks on all of them"
        raise NoCounterpartError(why)
    if count:
        each, rest = divmod(int(count), machines)
        if rest or not each:
            why = f"{count} ranks cannot be the same number on each of {machines} nodes"
            raise NoCounterpartError(why)
        flags["nproc_per_node"] = str(each)
    if "num_gpus" in flags:
        flags["nproc_per_node"] = flags["num_gpus"]
        flags.pop("gpu_ids", None)  # as deepspeed does
    if flags.get("nproc_per_node") == "gpu":
        flags["nproc_per_node"] = "auto"


def choose_rendezvous(
    flags: dict[str, str], typed: Mapping[str, str], *, is_local: bool
) -> list[str]:
    """Say where the nodes meet; return who restarts the ranks. `typed` are settings of ours."""
    backend = typed.get("rendezvous", flags.get("rdzv_backend", "static"))
    nodes, restarts = flags.get("nnodes", ""), flags.get("max_restarts", "").lstrip("0")
    _choose_endpoint(flags, typed, backend)
    if re.fullmatch(r"(\d+):\1", nodes):
        flags["nnodes"] = nodes.partition(":")[0]
    elif ":" in nodes and backend == "static":
        raise NoCounterpartError(f"--nnodes={nodes} takes an --rdzv_backend such as c10d")
    if conf := flags.get("rdzv_conf"):
        pairs = (pair.partition("=") for pair in conf.split(","))
        flags["rdzv_conf"] = hydra_value({name: value for name, _, value in pairs})
    if signals := flags.get("signals_to_handle"):
        flags["signals_to_handle"] = f"[{signals}]"
    if backend != "static":
        return []
    for name in ("rdzv_backend", "max_restarts"):
        flags.pop(name, None)
    alone = ["rendezvous=standalone", f"torchrun.max_restarts={restarts}"]
    return (alone if is_local else [f"relaunch.max={restarts}"]) if restarts else []


def _choose_endpoint(flags: dict[str, str], typed: Mapping[str, str], backend: str) -> None:
    """Name etcd's endpoint; of any other the port is enough, and 0 is any that is free."""
    endpoint = flags.pop("rdzv_endpoint", "")
    if not backend.startswith("etcd"):
        port = re.fullmatch(r"(?:\[.*\]|[^:]*):(\d+)", endpoint)
        flags |= {"master_port": port[1]} if port else {}
    elif endpoint:
        flags["rdzv_endpoint"] = endpoint if ":" in endpoint else f"{endpoint}:2379"
    elif not {"rendezvous.endpoint", "rendezvous.serve"} & typed.keys():
        why = f"{backend} takes --rdzv_endpoint=HOST:PORT, where it listens; rendezvous.serve=NODE"
        raise NoCounterpartError(f"{why} has a node run one, and c10d needs none")
    for name in ("master_port", "main_process_port"):
        if not flags.get(name, "").strip("0"):
            flags.pop(name, None)


def chosen_gpus(flags: dict[str, str], *, is_local: bool) -> list[str]:
    """Return the settings for what CUDA_VISIBLE_DEVICES, or accelerate's --gpu_ids, chooses."""
    chosen = flags.pop("gpu_ids", "all")
    numbers = [] if chosen in ("", "-1") else chosen.split(",")
    if chosen == "all":
        return []
    if numbers == [*map(str, range(len(numbers)))]:
        return [f"cluster.gpus_per_node={len(numbers)}"]
    if is_local and all(map(str.isdecimal, numbers)):
        return [f"cluster.nodes.local.gpus=[{chosen}]"]
    why = f"the GPUs {chosen} are chosen here by their numbers on each node"
    raise NoCounterpartError(f"{why}: 'cluster.nodes.NODE.gpus=[2,3]'")
