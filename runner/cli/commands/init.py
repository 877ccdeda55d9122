"""The verb `init`: the first YAML of a project."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence

from runner.cli.verb import verb
from runner.ui.output import show


@verb(
    "init",
    cluster="the name of the new cluster's file",
    task_="the name of the new task's file",
    hosts="names, gpu[01-16], user@address:port, or NAME=ADDRESS; repeatable",
    user="the login name on the hosts",
    key="the private key to log in with",
    python="the interpreter that has torch, on the hosts",
    script="the program to train with",
    hostfile="a file of hosts, as DeepSpeed and MPI read it",
    fabfile="write a fabfile, too: `fab VERB` is then `runner VERB`",
    json_="print JSON, and ask nothing",
)
def init(
    cluster: str = "mine",
    task_: str = "train",
    hosts: Sequence[str] = (),
    user: str = "",
    key: str = "",
    python: str = "",
    script: str = "",
    hostfile: str = "",
    fabfile: bool = False,
    json_: bool = False,
) -> int:
    """Write the first YAML of a project.

    On a terminal it asks for machines, their Python and the program, where no flag gives them; no
    machine is contacted. Existing files are kept.
    """
    from runner.cli.scaffold import scaffold

    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not json_
    with contextlib.redirect_stdout(sys.stderr if json_ else sys.stdout):
        result = scaffold(
            cluster,
            task_,
            interactive=interactive,
            fabfile=fabfile,
            hosts=" ".join(hosts),
            hostfile=hostfile,
            user=user,
            key=key,
            python=python,
            script=script,
        )
    if json_:
        data = {"written": result.written, "kept": result.existing}
        show(json.dumps({name: [str(path) for path in paths] for name, paths in data.items()}))
    return 0
