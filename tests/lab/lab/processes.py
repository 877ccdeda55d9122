"""Processes of a PID namespace, read from its /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Process:
    """A process; its parent is 0 for PID 1, and for what `Host.sh` and `Host.popen` brought in."""

    pid: int
    ppid: int
    cmdline: str


def processes(proc: Path, tag: str = "") -> Iterator[Process]:
    """Yields the processes with `tag` in their arguments or initial environment; no zombies."""
    for entry in proc.glob("[0-9]*"):
        try:
            state, ppid = (
                (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            )
            cmdline = (entry / "cmdline").read_bytes()
            environ = (entry / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if state not in "ZX" and (tag.encode() in cmdline or tag.encode() in environ):
            text = cmdline.decode(errors="replace").rstrip("\0").replace("\0", " ")
            yield Process(int(entry.name), int(ppid), text)


def listens(pid: int, port: int) -> bool:
    """Tells whether something in the network namespace of `pid` listens on a TCP port."""
    try:
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)
