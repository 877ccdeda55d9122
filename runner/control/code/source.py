"""Code source of a run: a snapshot of the project, a past run's code, or what hosts have."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import runner
from runner.control.code import worktree
from runner.control.code.pool import STORE, CodeKeeper, CodePool, PushSource, find_release
from runner.control.code.snapshot import Snapshot, python_path
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.launch_request import LaunchRequest, RecordedCode
from runner.core.spec import SHIPPED_TASKS, Spec, Task, are_local
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
    for folder in _folders():
        for path in sorted(folder.iterdir()):
            if path.is_file():
                contents[path.name] = path.read_bytes()
    files = tuple((name, len(content)) for name, content in contents.items())
    return ShippedTasks(tasks_digest(contents.items()), files, b"".join(contents.values()))


def _folders() -> tuple[Path, Path]:
    """Return the folder of each of SHIPPED_TASKS: in a checkout examples are beside the package."""
    inside = _PACKAGE / "examples"
    return _PACKAGE / "tasks", inside if inside.is_dir() else _PACKAGE.parent / "examples"


def _check_shipped(task: Task) -> None:
    """Raise ConfigError for a module that is not in the package that its name says."""
    modules: list[str] = []
    for package, folder in zip(SHIPPED_TASKS, _folders(), strict=True):
        modules += [package + file.stem for file in sorted(folder.glob("[a-z]*.py"))]
    if task.target not in modules:
        hint = f"there are {', '.join(modules)}"
        raise ConfigError([Problem("task.module", f"there is no {task.target}", hint)])


class CodeOnHosts:
    """Code that is not pushed: the shipped tasks, or a project that is on the hosts already."""

    def __init__(self, spec: Spec, cwd: Path) -> None:
        self.notes: list[str] = []
        if spec.task.shipped_file:
            _check_shipped(spec.task)
            self.code = CodeRef(tasks_hash=shipped_tasks().hash)
        elif are_local(spec.nodes):
            here = Path(cwd, spec.cluster.project)
            folders, self.notes = python_path(here, _modules_at_the_top(here), here, spec.task)
            self.code = CodeRef(python_path=folders)
        else:
            self.code = CodeRef()

    def keep(self, pool: CodePool) -> None:
        """Return None: it stays on the hosts."""

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> None:
        """Return None: there is nothing to push."""


def _modules_at_the_top(project: Path) -> set[str]:
    """Return what is in a project and in its `src/`, and which of these folders are packages."""
    found: set[str] = set()
    for folder in (project, project / "src"):
        for path in folder.iterdir() if folder.is_dir() else ():
            package = path / "__init__.py"
            found.add(path.relative_to(project).as_posix())
            if package.is_file():
                found.add(package.relative_to(project).as_posix())
    return found


class RerunCode:
    """The code of a past run, kept here or on the hosts; or the shipped tasks."""

    notes: tuple[str, ...] = ()

    def __init__(self, recorded: RecordedCode, spec: Spec, cwd: Path) -> None:
        self._recorded = recorded
        self._spec = spec
        self._cwd = cwd
        self._stored: PushSource | None = None
        self._problems: Sequence[Problem] = ()  # with the code here
        if self.code.release:
            self._stored = find_release(recorded.places, self.code.release)
        else:
            _check_tasks(recorded, spec)

    @property
    def code(self) -> CodeRef:
        """The reference to it in a plan."""
        return self._recorded.code

    def keep(self, pool: CodePool) -> CodeKeeper | None:
        """Begin to copy it into the pool of the new run, if it is here."""
        return CodeKeeper(pool, self._stored) if self._stored else None

    def content(self) -> PushSource | None:
        """Return the kept release, or the code here if it is the same."""
        if self._stored is None and self.code.release:
            try:
                here = Snapshot.take(self._spec, self._cwd)
                self._stored = here if release_hash(here.encoded) == self.code.release else None
            except (ConfigError, NotReady) as error:
                self._problems = error.problems
        return self._stored

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> PushSource | None:
        """Return the code if hosts lack the release; raise NotReady if it is not here either.

        It may be what is in the work tree now, if that is the same.
        """
        release = self.code.release
        lacking = sorted(name for name, node_facts in facts.items() if not node_facts.has_release)
        if not release or not lacking:
            return None
        if content := self.content():
            return content
        message = (
            f"run {self._recorded.run_id} ran release {release}, which is not on "
            f"{join_some(lacking)} (any more), was removed from "
            f"{self._recorded.places[0] / STORE} or never kept there, and the code here is not the "
            f"same"
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


def code_of(request: LaunchRequest, source: CodeSource) -> CodeRef:
    """Return the code of a run, with the place of what its task keeps: that of a run it repeats."""
    code = source.code
    if code.keep_place or not request.spec.task.keep:
        return code
    words = [worktree.project_name(Path.cwd()), request.spec.task.name]
    if request.sweep:
        words[1] += f".{request.sweep.number}"
    place = "/".join(re.sub(r"[^\w.-]+", "-", word).strip(".-") or "task" for word in words)
    return replace(code, keep_place=place)


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
