"""Code source of a run: a snapshot of the project, a past run's code, or what hosts have.

Each has `code` (for the plan), `notes` (for the user) and `release(lacking)`: what is pushed, None
if that is nothing. `lacking` are those who need it; a past run's, looked for here, may be NotReady.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import runner
from runner.control.code import worktree
from runner.control.code.pool import STORE, CodePool, Release, find_release
from runner.control.code.snapshot import Snapshot, python_path
from runner.core.errors import ConfigError, NotReady, Problem, RunnerError
from runner.core.launch_request import LaunchRequest, RecordedCode
from runner.core.spec import SHIPPED_TASKS, Spec, Task, are_local
from runner.core.wire.files import tasks_digest
from runner.core.wire.plan import CodeRef
from runner.core.wire.text import join_some

_PACKAGE = Path(runner.__file__).parent

FINISH_TIMEOUT_S = 60.0
"""How long the end of a launch waits until the code is kept: a disk may be slow, or be gone."""

FINISH_POLL_S = 0.1


@dataclass(frozen=True)
class ShippedTasks:
    """All shipped programs: content hash, names and sizes of the files, the bytes."""

    hash: str
    files: tuple[tuple[str, int], ...]
    payload: bytes

    def header(self) -> dict[str, Any]:
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


class CodeOnHosts:
    """Code that is not pushed: the shipped tasks, or a project that is on the hosts already."""

    def __init__(self, spec: Spec, cwd: Path) -> None:
        self.notes: Sequence[str] = ()
        self.code = CodeRef()
        if spec.task.shipped_file:
            _check_shipped(spec.task)
            self.code = CodeRef(tasks_hash=shipped_tasks().hash)
        elif are_local(spec.nodes):
            here = Path(cwd, spec.cluster.project)
            folders, self.notes = python_path(here, _modules_at_the_top(here), here, spec.task)
            self.code = CodeRef(python_path=folders)

    def release(self, lacking: Sequence[str] = ()) -> None:
        del lacking


def _check_shipped(task: Task) -> None:
    """Raise ConfigError for a module that is not in the package that its name says."""
    modules: list[str] = []
    for package, folder in zip(SHIPPED_TASKS, _folders(), strict=True):
        modules += [package + file.stem for file in sorted(folder.glob("[a-z]*.py"))]
    if task.target not in modules:
        hint = f"there are {', '.join(modules)}"
        raise ConfigError([Problem("task.module", f"there is no {task.target}", hint)])


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
    """The release of a past run: kept here, or on the hosts."""

    notes: Sequence[str] = ()

    def __init__(self, recorded: RecordedCode) -> None:
        self.code = recorded.code
        self._recorded = recorded
        self._release = find_release(recorded.places, self.code.release)

    def release(self, lacking: Sequence[str] = ()) -> Release | None:
        if self._release is None and lacking:
            message = (
                f"run {self._recorded.run_id} ran release {self.code.release}, which is not on "
                f"{join_some(lacking)} (any more), and was removed from "
                f"{self._recorded.places[0] / STORE} or never kept there"
            )
            commit = self.code.commit
            hint = "restore the code as it was, and start it without rerun"
            if commit:
                changed = ", restore what was not committed" if commit.endswith("+") else ""
                hint = f"git checkout {commit.rstrip('+')}{changed}, and start it without rerun"
            raise NotReady([Problem("rerun", message, hint)])
        return self._release


CodeSource = Snapshot | RerunCode | CodeOnHosts


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


def open_code_source(request: LaunchRequest) -> CodeSource:
    """Return it; raise ConfigError if the project cannot be pushed, or past tasks are gone."""
    spec = request.spec
    recorded = request.recorded_code
    if recorded and recorded.code.release:
        return RerunCode(recorded)
    if recorded and recorded.code.tasks_hash != shipped_tasks().hash:
        message = (
            f"run {recorded.run_id} ran {spec.task.target} of another version of the runner: its "
            f"tasks were {recorded.code.tasks_hash}, here they are {shipped_tasks().hash}"
        )
        hint = (
            f"install that version; or put its {spec.task.shipped_file} into your project and add "
            f"task.module=null task.script={spec.task.shipped_file}\n"
            f"or start it without rerun, with the code there is now"
        )
        raise ConfigError([Problem("rerun", message, hint)])
    return (Snapshot if spec.pushes_code else CodeOnHosts)(spec, Path.cwd())


class CodeKeeper:
    """The background copy of a launch's code into a pool; training does not wait for it.

    From then on the release is read from there: files may change in the work tree.
    """

    def __init__(self, pool: CodePool, source: CodeSource) -> None:
        self._pool = pool
        self._source = source
        self._problem = ""
        self._thread = threading.Thread(target=self._keep, daemon=True, name="keep code")
        self._thread.start()

    def finish(self, is_interrupted: Callable[[], bool] = lambda: False) -> str:
        """Wait for its end; return why the code is not kept, "" if it is."""
        too_late_at = time.monotonic() + FINISH_TIMEOUT_S
        while self._thread.is_alive():
            if is_interrupted():
                return "it was interrupted"
            if time.monotonic() > too_late_at:
                return f"{self._pool.folder} takes longer than {FINISH_TIMEOUT_S:.0f} s"
            self._thread.join(FINISH_POLL_S)
        return self._problem

    def _keep(self) -> None:
        try:
            if release := self._source.release():
                release.pool = release.pool or self._pool
                self._pool.add(release)
        except RunnerError as error:
            self._problem = error.problems[0].message
        except OSError as error:
            self._problem = f"{error.filename or self._pool.folder}: {error.strerror}"
