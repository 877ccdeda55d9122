"""Code source of a run: a snapshot of the project, a past run's code, or what hosts have."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import runner
from runner.core.model.facts import Facts
from runner.core.model.release import CodeRef
from runner.core.model.spec import Spec

if TYPE_CHECKING:
    from runner.control.code.snapshot import Snapshot


_PACKAGE = Path(runner.__file__).parent


@dataclass(frozen=True)
class ShippedTasks:
    """The programs of `runner/tasks`: content hash, names and sizes of the files, the bytes."""

    hash: str
    files: tuple[tuple[str, int], ...]
    payload: bytes

    def header(self) -> dict[str, Any]:
        """Return the fields of a `start` request that describe the payload."""
        return {"hash": self.hash, "files": [list(file) for file in self.files]}


@functools.cache
def shipped_tasks() -> ShippedTasks:
    """Return every file of `runner/tasks`; hosts need no other package of ours to run them."""
    paths = [p for p in sorted((_PACKAGE / "tasks").iterdir()) if p.is_file()]
    contents = [path.read_bytes() for path in paths]
    files = tuple((path.name, len(content)) for path, content in zip(paths, contents, strict=True))
    digest = hashlib.sha256()
    for (name, size), content in zip(files, contents, strict=True):
        digest.update(f"{name}\0{size}\0".encode() + content)
    return ShippedTasks(digest.hexdigest()[:16], files, b"".join(contents))


class CodeSource(Protocol):
    """Where the code that the ranks run comes from."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about it."""

    @property
    def code(self) -> CodeRef:
        """The reference to it in a plan."""

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> Snapshot | None:
        """Return the snapshot to push to the hosts that lack the code; None if there is none.

        Raise NotReady if a host lacks it, and it is not here either.
        """


class CodeOnHosts:
    """Code that is not pushed: the shipped tasks, or a project that is on the hosts already."""

    notes: tuple[str, ...] = ()

    def __init__(self, spec: Spec) -> None:
        tasks_hash = shipped_tasks().hash if spec.task.shipped_file else ""
        self.code = CodeRef(tasks_hash=tasks_hash)

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> None:
        """Return None: there is nothing to push."""
