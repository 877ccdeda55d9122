"""Code source of a run: a snapshot of the project, a past run's code, or what hosts have."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import runner
from runner.control.code.code_store import STORE, CodeKeeper, CodeStore, PushSource
from runner.control.code.snapshot import Snapshot
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.launch_request import RecordedCode
from runner.core.spec import SHIPPED_TASKS, Spec, Task
from runner.core.wire.facts import Facts
from runner.core.wire.files import release_hash, tasks_digest
from runner.core.wire.plan import CodeRef
from runner.core.wire.text import join_some

_PACKAGE = Path(runner.__file__).parent

CURRENT_CODE_HINT = "or start it without rerun, with the code there is now"


@dataclass(frozen=True)
class ShippedTasks:
    """All shipped programs: content hash, names and sizes of the files, the bytes."""

    hash: str
    files: tuple[tuple[str, int], ...]
    payload: bytes

    def header(self) -> dict[str, Any]:
        """Return the fields of a `start` request that describe the payload."""
        return {"hash": self.hash, "files": [list(file) for file in self.files]}


@functools.cache
def shipped_tasks() -> ShippedTasks:
    """Return every file of `runner/tasks` and of `examples`, which are one folder on a host."""
    contents: dict[str, bytes] = {}
    for folder in (_PACKAGE / "tasks", _examples_folder()):
        for path in sorted(folder.iterdir()):
            if path.is_file():
                contents[path.name] = path.read_bytes()
    files = tuple((name, len(content)) for name, content in contents.items())
    return ShippedTasks(tasks_digest(contents.items()), files, b"".join(contents.values()))


def _examples_folder() -> Path:
    """Return the teaching programs: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / "examples"
    return inside if inside.is_dir() else _PACKAGE.parent / "examples"


def _check_shipped(task: Task) -> None:
    """Raise ConfigError for a module that is not in the package that its name says."""
    folders = dict(zip(SHIPPED_TASKS, (_PACKAGE / "tasks", _examples_folder()), strict=True))
    modules = {
        package + file.stem
        for package, folder in folders.items()
        for file in folder.glob("[a-z]*.py")
    }
    if task.target not in modules:
        name = task.target.rpartition(".")[2]
        near = [module for module in sorted(modules) if module.endswith(f".{name}")]
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(modules))}"
        raise ConfigError([Problem("task.module", f"there is no {task.target}", hint)])


class CodeOnHosts:
    """Code that is not pushed: the shipped tasks, or a project that is on the hosts already."""

    notes: tuple[str, ...] = ()

    def __init__(self, spec: Spec) -> None:
        if spec.task.shipped_file:
            _check_shipped(spec.task)
        tasks_hash = shipped_tasks().hash if spec.task.shipped_file else ""
        self.code = CodeRef(tasks_hash=tasks_hash)

    def keep(self, store: CodeStore) -> None:
        """Return None: it stays on the hosts."""

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> None:
        """Return None: there is nothing to push."""


class RerunCode:
    """The code of a past run, kept here or on the hosts; or the shipped tasks."""

    def __init__(self, recorded: RecordedCode, spec: Spec, cwd: Path) -> None:
        self._recorded = recorded
        self._cwd = cwd
        self._stores = [CodeStore(place / STORE) for place in recorded.places]
        self._candidate: PushSource | None = None
        self._here: Snapshot | None = None
        self._problems: Sequence[Problem] = ()
        if not self.code.release:
            _check_tasks(recorded, spec)
            return
        try:
            self._here = Snapshot.take(spec, cwd)
        except ConfigError as error:
            self._problems = error.problems  # matters only where a host lacks the release
        found = (store.find(self.code.release) for store in self._stores)
        self._candidate = next(filter(None, found), self._here)

    @property
    def notes(self) -> tuple[str, ...]:
        """What differs in the folder of today, if its code can be read."""
        try:
            if self._here is None or release_hash(self._here.encoded) == self.code.release:
                return ()
        except NotReady:
            return ()
        return (f"the recorded code runs; that in {self._cwd} differs from it",)

    @property
    def code(self) -> CodeRef:
        """The reference to it in a plan."""
        return self._recorded.code

    def keep(self, store: CodeStore) -> CodeKeeper | None:
        """Begin to copy it into the store of the new run, if it is here."""
        content = self.content()
        return CodeKeeper(store, content) if content else None

    def content(self) -> PushSource | None:
        """Return the kept release, or the code here if it is the same."""
        try:
            if self._candidate and release_hash(self._candidate.encoded) == self.code.release:
                return self._candidate
        except NotReady as error:
            self._problems = error.problems
        return None

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> PushSource | None:
        """Return the code if hosts lack the release; raise NotReady if it is not here either."""
        lacking = sorted(name for name, node_facts in facts.items() if not node_facts.has_release)
        if not self.code.release or not lacking:
            return None
        if content := self.content():
            return content
        message = (
            f"run {self._recorded.run_id} ran release {self.code.release}, which is not on "
            f"{join_some(lacking)} (any more), was removed from {self._stores[0].folder} or never "
            f"kept there, and the code here is not the same"
        )
        hints = [*map(str, self._problems), self._restore_hint(), CURRENT_CODE_HINT]
        raise NotReady([Problem("rerun", message, "\n".join(hints))])

    def _restore_hint(self) -> str:
        commit = self.code.commit
        if not commit:
            return "restore the code here as it was, and start again"
        changed = ", restore what was not committed" if commit.endswith("+") else ""
        return f"git checkout {commit.rstrip('+')}{changed}, and start again"


CodeSource = Snapshot | RerunCode | CodeOnHosts
"""Where the code that the ranks run comes from."""


def _check_tasks(recorded: RecordedCode, spec: Spec) -> None:
    tasks_hash = shipped_tasks().hash
    if recorded.code.tasks_hash == tasks_hash:
        return
    message = (
        f"run {recorded.run_id} ran {spec.task.target} of another version of the runner: its "
        f"tasks were {recorded.code.tasks_hash}, here they are {tasks_hash}"
    )
    hint = (
        f"install that version; or put its {spec.task.shipped_file} into your project and add "
        f"task.module=null task.script={spec.task.shipped_file}\n{CURRENT_CODE_HINT}"
    )
    raise ConfigError([Problem("rerun", message, hint)])
