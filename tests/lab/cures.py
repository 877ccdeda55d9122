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
    id: str
    program: str
    failing: tuple[str, ...]  # what is typed beside the script
    remedy: str
    cured: tuple[str, ...] = ()  # what is typed then; of a word that was typed, the later one wins
    cured_program: str = ""  # where the cure is a change of the program
    files: dict[str, str] = field(default_factory=dict)  # beside the program
    module: str = ""  # what is run in place of the script
    all_only: bool = False


CURES = (
    Cure(
        *("local_rank_unknown", "which takes none", ARGPARSE.format("")),
        failing=(*TORCHRUN, "task.local_rank_arg=--local_rank"),
        remedy="task.entry=torchrun task.local_rank_arg=null",
        cured=("task.entry=torchrun", "task.local_rank_arg=null"),
    ),
    Cure(
        *("local_rank_unknown", "as launch spells it"),
        ARGPARSE.format("parser.add_argument('--local_rank')"),
        failing=(*TORCHRUN, "task.entry=launch"),
        remedy="task.entry=torchrun task.local_rank_arg=--local_rank",
        cured=("task.entry=torchrun", "task.local_rank_arg=--local_rank"),
    ),
    Cure(
        *("local_rank_wanted", "that nobody passes"),
        ARGPARSE.format("parser.add_argument('--local_rank', required=True)"),
        failing=TORCHRUN,
        remedy="task.entry=torchrun task.local_rank_arg=--local_rank",
        cured=("task.entry=torchrun", "task.local_rank_arg=--local_rank"),
    ),
    Cure(
        *("local_rank_missing", "one process per node"),
        "import os\nprint('local rank', int(os.environ['LOCAL_RANK']))\n",
        failing=(*TORCHRUN, *PLAIN),
        remedy="task.entry=torchrun",
        cured=("task.entry=torchrun",),
    ),
    Cure(
        *("node_rank_missing", "own workers", SPAWN),
        failing=TORCHRUN,
        remedy="task.entry=plain",
        cured=PLAIN,
    ),
    Cure(
        *("argument_unknown", "an underscore"),
        ARGPARSE.format("parser.add_argument('--fail-rank')"),
        failing=(*PLAIN, "task.args.fail_rank=1"),
        remedy="its name is task.args.fail-rank, not task.args.fail_rank",
        cured=("~task.args.fail_rank", "task.args.fail-rank=1"),
    ),
    Cure(
        *("port_taken", "a port of its own"),
        "import socket, sys\ntaken = socket.create_server(('', 0))\n"
        "socket.create_server(('', taken.getsockname()[1]))\n",
        failing=PLAIN,
        remedy="let it choose a free one",
        cured_program="import socket, sys\ntaken = socket.create_server(('', 0))\n"
        "socket.create_server(('', 0))\n",
    ),
    Cure(
        *("module_missing", "in another environment", "import wanted\n"),
        files={"environment/wanted.py": ""},
        failing=PLAIN,
        remedy="cluster.setup to the environment that has it",
        cured=("cluster.setup=['export PYTHONPATH=$PWD/environment']",),
    ),
    Cure(
        *("module_missing", "of a src layout", ""),
        files={"src/package/__init__.py": "", "src/package/train.py": "print('on')\n"},
        module="package.train",
        failing=PLAIN,
        remedy="task.env.PYTHONPATH=src",
        cured=("task.env.PYTHONPATH=src",),
    ),
    Cure(
        *("home_unexpanded", "a tilde in an argument"),
        "import sys\nprint(open(sys.argv[-1]).read())\n",
        files={"elsewhere/train.bin": "data"},
        failing=(*PLAIN, "task.args.data=~/train.bin"),
        remedy="write the path out",
        cured=("task.args.data=elsewhere/train.bin",),
    ),
    Cure(
        *("file_missing", "at another path"),
        "import sys\nprint(open(sys.argv[-1]).read())\n",
        files={"elsewhere/train.bin": "data"},
        failing=(*PLAIN, "task.args.data=data/train.bin"),
        remedy="set their path",
        cured=("task.args.data=elsewhere/train.bin",),
    ),
    Cure(
        *("not_executable", "a script of Python", "print('started')\n"),
        failing=(*PLAIN, "task.command=./fail.py"),
        remedy="needs neither as task.script=./fail.py",
        cured=("task.script=./fail.py",),
    ),
    Cure(
        *("no_gpu", "a device that is not there"),
        "import sys, torch\nprint(torch.zeros(1, device=sys.argv[-1]))\n",
        failing=(*PLAIN, "task.args.device=cuda"),
        remedy="have the program use the device cpu",
        cured=("task.args.device=cpu",),
        all_only=True,
    ),
    Cure(
        *("no_gpu", "nccl"),
        "import sys, torch.distributed as dist\ndist.init_process_group(sys.argv[-1])\n",
        failing=(*PLAIN, "task.args.backend=nccl"),
        remedy="and the backend in DIST_BACKEND",
        cured_program="import os, torch.distributed as dist\n"
        "dist.init_process_group(os.environ['DIST_BACKEND'])\n",
        all_only=True,
    ),
    Cure(
        *("gloo_interface", "a name of no interface", GLOO),
        failing=(*PLAIN, "task.env.GLOO_SOCKET_IFNAME=ib9"),
        remedy="take GLOO_SOCKET_IFNAME out of cluster.env, task.env",
        cured=("~task.env.GLOO_SOCKET_IFNAME",),
        all_only=True,
    ),
)

TRIED_BY = {
    "debugger": "test_first_hour.py::test_a_rank_can_be_debugged",
    "unattended": "test_cures.py::test_a_detached_run_needs_no_controller",
    "gloo_loopback": "test_cures.py::test_a_loopback_address_has_a_cure",
    "lightning_size": "test_libraries.py::test_lightning_with_other_sizes_than_the_run",
    "disk_full": "test_cures.py::test_a_full_disk_has_a_cure",
    "shared_memory": "test_cures.py::test_a_full_disk_has_a_cure",
    "start_not_permitted": "test_cures.py::test_a_start_that_failed_has_a_cure",
    "start_failed": "test_cures.py::test_a_start_that_failed_has_a_cure",
}
"""The tests of cures that need hosts, or more than one launch."""

NOT_TRIED = {
    "memory": "the kernel has to run out of memory; the cure is less of it, or a limit of root's",
    "gpu_memory": "it needs a GPU",
    "gpu_ordinal": "it needs a GPU",
    "nccl_versions": "it needs GPUs on two hosts, with two versions of NCCL",
    "nccl_no_route": "it needs GPUs on two hosts",
    "nccl_watchdog": "it needs GPUs; the cure is that of the rank that is named",
    "nccl_system": "it needs GPUs",
    "ranks_missing": "the cure is that of the node whose logs are named",
    "master_refused": "the cure is a firewall's; `check` finds it (test_faults.py)",
    "peer_left": "the cure is that of the rank that is named",
}
"""Why the cures of the others cannot be tried."""
