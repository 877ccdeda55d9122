"""The argv of torchrun, and of the ranks it starts."""

from __future__ import annotations

from typing import Sequence, Tuple

from runner.core.model.spec import Task

LOCAL_RANK_MACRO = "${local_rank}"


LAUNCHER_MODULES = {"torchrun": "torch.distributed.run", "launch": "torch.distributed.launch"}
"""What the interpreter runs, by `Task.entry`."""

LAUNCHER_NAMES = {"torchrun": "torchrun", "launch": "torch.distributed.launch"}
"""How people call it, by `Task.entry`."""


def torchrun_command(python: str, flags: Sequence[str], entry: str = "torchrun") -> Tuple[str, ...]:
    """Return torchrun's own part of the command; `python` is the task's interpreter."""
    return (python, "-m", LAUNCHER_MODULES[entry], *flags)


def torchrun_program(task: Task, script: str, shim: str = "") -> Tuple[str, ...]:
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
        program = (shim, escape(task.target)) if shim else (task.target,)
        # torch.distributed.launch would pass --local-rank, and does not to what is not Python.
        use_env = ("--use_env",) if task.entry == "launch" else ()
        return (*use_env, "--no_python", "--", *program, *args)
    if script:
        return ("--", escape(script), *args)
    return ("-m", "--", escape(task.target), *args)


def torchrun_args_index(command: Sequence[str]) -> int:
    """Return where the task's own arguments begin in a command of ours."""
    options = len(("python", "-m", "torch.distributed.run"))
    words = enumerate(command[options:], start=options + 1)
    return next(index for index, word in words if not word.startswith("-"))


def escape(arg: str) -> str:
    """Double every `$` but that of torchrun's `${local_rank}` macro.

    torch passes script arguments through `string.Template.safe_substitute`
    (torch/distributed/elastic/utils/api.py), which would turn `$$` into `$`.
    """
    parts = arg.split(LOCAL_RANK_MACRO)
    return LOCAL_RANK_MACRO.join(part.replace("$", "$$") for part in parts)
