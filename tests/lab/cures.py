"""Cures under test: a program that fails as a known failure says, and what its cure says to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.lab.launching import TORCHLESS

PLAIN = ("task.entry=plain",)
TORCHRUN = (f"cluster.env.PYTHONPATH={TORCHLESS}", "cluster.nproc_per_node=1")
"""A stand-in for torchrun and torch.distributed.launch, which costs no import of torch."""

ARGPARSE = "import argparse\nparser = argparse.ArgumentParser()\n{}\nprint(parser.parse_args())\n"
SPAWN = """\
import multiprocessing, os
def work(local, node):
    print("worker", node * 2 + local, flush=True)
if __name__ == "__main__":
    workers = multiprocessing.get_context("fork")
    node = int(os.environ["NODE_RANK"])
    started = [workers.Process(target=work, args=(each, node)) for each in range(2)]
    [each.start() for each in started]
    [each.join() for each in started]
"""
GLOO = """\
import torch.distributed as dist
dist.init_process_group("gloo")
print("met")
"""


@dataclass(frozen=True)
class Cure:
    """One failing program, run on this machine alone, and its cure.

    The words of `remedy` must stand in the printed cure, and `cured` is what they say.
    """

    cause: str
    program: str
    failing: tuple[str, ...]  # what is typed beside the script
    remedy: str
    cured: tuple[str, ...]  # what is typed then; of a word that was typed, the later one wins
    files: dict[str, str] = field(default_factory=dict)  # beside the program
    module: str = ""  # what is run in place of the script


CURES = (
    Cure(
        "local_rank_unknown",
        ARGPARSE.format("parser.add_argument('--local_rank')"),
        failing=(*TORCHRUN, "task.entry=launch"),
        remedy="task.entry=torchrun task.local_rank_arg=--local_rank",
        cured=("task.entry=torchrun", "task.local_rank_arg=--local_rank"),
    ),
    Cure(
        "local_rank_wanted",
        ARGPARSE.format("parser.add_argument('--local_rank', required=True)"),
        failing=TORCHRUN,
        remedy="task.entry=torchrun task.local_rank_arg=--local_rank",
        cured=("task.entry=torchrun", "task.local_rank_arg=--local_rank"),
    ),
    Cure(
        "local_rank_missing",
        "import os\nprint('local rank', int(os.environ['LOCAL_RANK']))\n",
        failing=(*TORCHRUN, *PLAIN),
        remedy="task.entry=torchrun",
        cured=("task.entry=torchrun",),
    ),
    Cure(
        "node_rank_missing",
        SPAWN,
        failing=TORCHRUN,
        remedy="task.entry=plain",
        cured=PLAIN,
    ),
    Cure(
        "argument_unknown",
        ARGPARSE.format("parser.add_argument('--fail-rank')"),
        failing=(*PLAIN, "task.args.fail_rank=1"),
        remedy="its name is task.args.fail-rank, not task.args.fail_rank",
        cured=("~task.args.fail_rank", "task.args.fail-rank=1"),
    ),
    Cure(
        "module_missing",
        "",
        files={"src/package/__init__.py": "", "src/package/train.py": "print('on')\n"},
        module="package.train",
        failing=PLAIN,
        remedy="task.env.PYTHONPATH=src",
        cured=("task.env.PYTHONPATH=src",),
    ),
    Cure(
        "home_unexpanded",
        "import sys\nprint(open(sys.argv[-1]).read())\n",
        files={"elsewhere/train.bin": "data"},
        failing=(*PLAIN, "task.args.data=~/train.bin"),
        remedy="write the path out",
        cured=("task.args.data=elsewhere/train.bin",),
    ),
    Cure(
        "not_executable",
        "print('started')\n",
        failing=(*PLAIN, "task.command=./fail.py"),
        remedy="needs neither as task.script=./fail.py",
        cured=("task.script=./fail.py",),
    ),
    Cure(
        "gloo_interface",
        GLOO,
        failing=(*PLAIN, "task.env.GLOO_SOCKET_IFNAME=ib9"),
        remedy="take GLOO_SOCKET_IFNAME out of cluster.env, task.env",
        cured=("~task.env.GLOO_SOCKET_IFNAME",),
    ),
)
