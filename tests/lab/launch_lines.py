"""A reader of launch lines: what a line of torchrun, accelerate, mpirun and so on asks for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAUNCHERS = {
    *("torchrun", "srun", "accelerate", "launch", "deepspeed", "mpirun", "horovodrun", "torchx"),
    *("fabric", "colossalai"),
    *(
        "run",
        "dist.ddp",
        "python",
        "python3",
        "bash",
        "exec",
        "#SBATCH",
        "-m",
        "-u",
        "--no_python",
    ),
    *("torch.distributed.run", "torch.distributed.launch", "torchelastic.distributed.launch"),
}
ALONE = {"--standalone": ("nnodes", "1"), "--multi_gpu": ("nnodes", "1")}
ALONE |= {"--use_env": ("use_env", "")}
"""Flags without a value, and what they say."""

RANKS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "1"),
    **{"torchelastic.distributed.launch": "1", "fabric": "1"},
    **dict.fromkeys(("accelerate", "deepspeed"), "gpu"),
}
"""Launchers by the ranks of a node, if a line does not say how many they are."""

SAME = {
    **dict.fromkeys(("num_machines", "num_nodes", "nodes"), "nnodes"),
    **{"ntasks_per_node": "nproc_per_node", "machine_rank": "node_rank"},
    **dict.fromkeys(("main_process_port", "main_port"), "master_port"),
    **dict.fromkeys(("devices", "num_gpus"), "nproc_per_node"),
}
"""Names of flags elsewhere, by those of torchrun."""


@dataclass(frozen=True)
class LaunchLine:
    """What a line asks for.

    Attributes:
        flags: Options by torchrun's names.
        env: Variables set before the program.
        program: The program; "" if the line names none.
        args: Its arguments.
    """

    flags: Mapping[str, str]
    env: Mapping[str, str]
    program: str
    args: tuple[str, ...]


def read_line(words: Sequence[str]) -> LaunchLine:
    """Read the words of a launch line."""
    left, flags, env, program = list(words), dict[str, str](), dict[str, str](), ""
    while left and not program:
        word = left.pop(0)
        if word in RANKS:
            flags.setdefault("nproc_per_node", RANKS[word])
        if assigned := re.fullmatch(r"([A-Z_]+)=(.*)", word):
            env[assigned[1]] = assigned[2]
        elif word in ALONE:
            flags.setdefault(*ALONE[word])
        elif word == "docker":
            flags |= _take_container(left)
        elif word == "--":
            program = flags.get("script", "")
        elif word.startswith("-") and word not in LAUNCHERS:
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_") if name != "mca" else f"mca_{left.pop(0)}"
            flags[SAME.get(name, name)] = value if equals else left.pop(0)
        elif Path(word).name not in LAUNCHERS:
            program = word
    if inner := flags.pop("c", ""):
        return read_line(shlex.split(inner))
    return LaunchLine(_counted(flags), env, program or flags.get("script", ""), tuple(left))


def _take_container(left: list[str]) -> dict[str, str]:
    """Take `run`, its options and the image off the words; return what they say.

    Where options follow, they are those of torchrun, the entry point of the image.
    """
    flags = dict[str, str]()
    while (word := left.pop(0)).startswith("-") or word == "run":
        name, equals, value = word.lstrip("-").partition("=")
        is_switch = word == "run" or name in ("rm", "init")
        flags[name.replace("-", "_")] = value if equals or is_switch else left.pop(0)
    flags["image"] = word
    asked = {name: flags[name] for name in ("image", "shm_size", "ipc") if name in flags}
    return asked | ({"nproc_per_node": "1"} if left[0].startswith("-") else {})


def _counted(flags: Mapping[str, str]) -> dict[str, str]:
    """Return flags with the number of nodes, and of ranks on each, as torchrun counts them."""
    counted = dict(flags)
    if "j" in flags:
        counted["nnodes"], _, counted["nproc_per_node"] = flags["j"].partition("x")
    if "H" in flags:
        slots = [host.partition(":")[2] for host in flags["H"].split(",")]
        counted["nnodes"], counted["nproc_per_node"] = str(len(slots)), slots[0]
    if "host" in flags:
        counted["nnodes"] = str(len(flags["host"].split(",")))
    if "num_processes" in flags:
        each = int(flags["num_processes"]) // int(flags.get("nnodes", 1))
        counted["nproc_per_node"] = str(each)
    if "rdzv_endpoint" in flags:
        counted["master_port"] = flags["rdzv_endpoint"].rpartition(":")[2]
    return counted


def read_filter(text: str) -> dict[str, list[int]]:
    """Read DeepSpeed's `worker-2:0@worker-3:0,1`."""
    parts = (part.partition(":") for part in text.split("@") if part)
    return {node: [int(number) for number in gpus.split(",")] for node, _, gpus in parts}
