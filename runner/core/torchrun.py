"""The argv of torchrun, and of the ranks it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

from runner.core.spec import Task

LOCAL_RANK_MACRO = "${local_rank}"


@dataclass(frozen=True)
class Static:
    """Static rendezvous: every node is told its rank and where the store is.

    `--max_restarts` is always 0: torch keeps one store without a prefix per attempt there, so
    restarted workers would meet stale keys (torch/distributed/elastic/rendezvous/
    static_tcp_rendezvous.py); a relaunch is ours to do.
    """

    nnodes: int
    node_rank: int
    nproc: int
    master_addr: str
    master_port: int
    run_id: str

    def flags(self) -> Tuple[str, ...]:
        """Return the options in the order a person would type them."""
        return (
            f"--nnodes={self.nnodes}",
            f"--nproc_per_node={self.nproc}",
            f"--node_rank={self.node_rank}",
            f"--master_addr={self.master_addr}",
            f"--master_port={self.master_port}",
            f"--rdzv_id={self.run_id}",
            "--max_restarts=0",
        )


def launcher(python: str, rendezvous: Static) -> Tuple[str, ...]:
    """Return torchrun's own part of the command; `python` is the task's interpreter."""
    return (python, "-m", "torch.distributed.run", *rendezvous.flags())


def program(task: Task, script: str, shim: str = "") -> Tuple[str, ...]:
    """Return what follows torchrun's options.

    Args:
        task: The program and its arguments.
        script: Where the script lies, or "" for a module or a command.
        shim: What starts a command in our stead; torchrun starts Python programs through
            `PYTHON_EXEC`, so that those need none here.
    """
    args = tuple(escape(arg) for arg in task.args)
    # Without the `--`, torchrun's argparse takes a script's `--n` for an option of its own.
    if task.kind == "command":
        started = (shim, escape(task.target)) if shim else (task.target,)
        return ("--no_python", "--", *started, *args)
    if script:
        return ("--", escape(script), *args)
    return ("-m", "--", escape(task.target), *args)


def args_at(command: Sequence[str]) -> int:
    """Return where the task's own arguments begin in a command of ours."""
    options = len(("python", "-m", "torch.distributed.run"))
    words = enumerate(command[options:], start=options + 1)
    return next(at for at, word in words if not word.startswith("-"))


def escape(arg: str) -> str:
    """Double every `$` but that of torchrun's `${local_rank}` macro.

    torch passes script arguments through `string.Template.safe_substitute`
    (torch/distributed/elastic/utils/api.py), which would turn `$$` into `$`.
    """
    parts = arg.split(LOCAL_RANK_MACRO)
    return LOCAL_RANK_MACRO.join(part.replace("$", "$$") for part in parts)
