"""Run store: the controller's record of a run, a folder that stays readable after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runner.control.atomic_file import replace_file
from runner.control.code import worktree
from runner.control.code.pool import find_release
from runner.control.record import run_index
from runner.control.record.launch_record import (
    CONFIG_FILE,
    OVERRIDES_FILE,
    PLAN_FILE,
    RESULT_FILE,
    SWEEP_FILE,
    read_launch,
    record_content,
)
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.outcome.diagnosis import Diagnosis, RunResult, diagnose
from runner.core.outcome.known_failures import ProjectFiles
from runner.core.outcome.verdict import Verdict
from runner.core.shell import line as command_line
from runner.core.shell import this_program
from runner.core.spec import are_local
from runner.core.wire.codec import decode, encode
from runner.core.wire.events import Event, parse
from runner.core.wire.paths import EVENTS_FILE
from runner.core.wire.plan import Plan
from runner.core.wire.states import LOST

MAX_AVG_LINE_BYTES = 200  # by which the last lines of a log are read


def try_lock_folder(folder: Path) -> int | None:
    """Return a descriptor that holds a lock on a folder, None if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # no locks there
        pass
    return descriptor


class RunStore:
    """`{config,overrides}.yaml`, `{plan,result}.json`, `events.jsonl`, `logs/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.write_error = ""
        self._sizes: dict[Path, int] = {}
        self._known_events: set[tuple[Any, ...]] = set()
        self._lock_fd: int | None = None
        self._has_torn_line = False

    @property
    def display_path(self) -> Path:
        """The folder relative to the current one, if it is below it."""
        with contextlib.suppress(OSError):  # that was removed
            folder = os.path.relpath(self.folder)
            return self.folder if folder.startswith("..") else Path(folder)
        return self.folder

    def require_free(self) -> None:
        """Raise ConfigError if the folder holds another run, or cannot be made."""
        message = ""
        there = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if not there.is_dir():
            message = f"cannot create {self.folder}: {there} is no folder"
        elif not os.access(there, os.R_OK | os.W_OK | os.X_OK):
            message = f"cannot create {self.folder}: you may not write in {there}"
        elif there == self.folder and any(there.iterdir()):
            message = f"{self.folder} exists already; a run never overwrites another"
        if message:
            hint = "set run_dir to a new folder, or another run_id"
            raise ConfigError([Problem("run_dir", message, hint)])

    def make(self) -> None:
        """Make the folder with its parents, out of git and of snapshots; raise OSError."""
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
        for folder in {*missing[-1:], self.folder}:
            run_index.ignore_folder(folder)

    @contextlib.contextmanager
    def required(self) -> Iterator[None]:
        """Raise NotReady where the record cannot be written that is to precede a start."""
        try:
            yield
        except OSError as error:
            message = f"cannot write in {self.folder}: {error.strerror}"
            problem = Problem("run_dir", message, "free some space, or set run_dir")
            raise NotReady([problem]) from error

    def create(self, request: LaunchRequest, plan: Plan) -> bool:
        """Begin the record; return whether its run id finds it. Raise OSError: there is none."""
        was_submitted = (self.folder / CONFIG_FILE).exists()
        try:
            if not was_submitted:
                self.write_request(request)
            self._lock_fd = try_lock_folder(self.folder)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            self.write_plan(plan, request)
        except OSError:
            if not was_submitted:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        run_id = request.spec.run_id
        run_index.register(run_id, self.folder)
        run_index.set_latest(self.folder)
        return run_index.record_folder(run_id) == self.folder.resolve()

    def write_request(self, request: LaunchRequest) -> None:
        """Make the folder, and record what was asked for; raise ConfigError or OSError."""
        self.require_free()
        self.make()
        self.write_text(CONFIG_FILE, request.config_yaml)
        lines = [f"- {json.dumps(word, ensure_ascii=False)}\n" for word in request.overrides]
        self.write_text(OVERRIDES_FILE, "".join(lines) or "[]\n")
        if request.sweep:
            self.write_json(SWEEP_FILE, request.sweep)

    def reopen(self, request: LaunchRequest, plan: Plan) -> bool:
        """Continue the record of a run, or begin one; add what an interrupted record lacks.

        Return whether this process writes it: not if another one does, or it cannot be written.
        """
        try:
            if not self.folder.exists():
                self.make()
            self._lock_fd = try_lock_folder(self.folder)
            if self._lock_fd is None:
                return False
            if run_index.record_folder(plan.run_id) in (None, self.folder.resolve()):
                run_index.register(plan.run_id, self.folder)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            if not (self.folder / CONFIG_FILE).exists():
                self.write_text(CONFIG_FILE, request.config_yaml)
            if plan.attempt > self._last_planned_attempt():
                with contextlib.suppress(ConfigError):  # none is on record
                    request = read_launch(self.folder)
                self.write_plan(plan, request)
        except OSError as error:
            self.write_error = f"cannot write in {self.folder}: {error.strerror}"
            return False
        with contextlib.suppress(OSError):
            for line in (self.folder / EVENTS_FILE).read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    self._known_events.add(_event_key(parse(line)))
        return True

    def _last_planned_attempt(self) -> int:
        try:
            return int(json.loads((self.folder / PLAN_FILE).read_bytes())["attempt"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def write_plan(self, plan: Plan, request: LaunchRequest) -> None:
        """Record the plan of an attempt, before it starts; raise OSError.

        The plan of an earlier attempt N is kept as `plan.N.json`.
        """
        last = self._last_planned_attempt()
        if 0 <= last < plan.attempt:
            previous = (self.folder / PLAN_FILE).read_text(encoding="utf-8")
            self.write_text(f"plan.{last}.json", previous)
        self.write_json(PLAN_FILE, record_content(plan, request))

    @property
    def has_result(self) -> bool:
        """Whether the end of the run is on record, and not that of an attempt before the last."""
        try:
            result = json.loads((self.folder / RESULT_FILE).read_bytes())
            last = self._last_planned_attempt()
            return bool(result.get("attempt", last) >= last)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, AttributeError, TypeError):
            return True  # `read_result` says what is wrong

    def write_result(
        self, plan: Plan, verdict: Verdict, began_at: float, diagnosis: Diagnosis | None
    ) -> None:
        """Record how the run ended, and why; `began_at` in seconds since 1970."""
        result = RunResult(
            **vars(verdict),
            run_id=plan.run_id,
            attempt=plan.attempt,
            began=began_at,
            ended=began_at + verdict.seconds,
            diagnosis=diagnosis,
        )
        try:
            self.write_json(RESULT_FILE, result)
        except OSError as error:
            message = f"cannot write in {self.folder}: {error.strerror}"
            self.write_error = self.write_error or message

    def read_result(self) -> tuple[Plan, Verdict]:
        """Return the last plan and the verdict; raise NotReady if they cannot be read here."""
        try:
            if not self.has_result:
                raise ValueError("there is no end of its last attempt")
            plan = decode(Plan, json.loads((self.folder / PLAN_FILE).read_bytes()))
            return plan, decode(Verdict, json.loads((self.folder / RESULT_FILE).read_bytes()))
        except (OSError, ValueError) as error:
            message = f"the record of a run in {self.folder} cannot be read: {error}"
            run_id = run_index.records().get(self.folder.resolve(), self.folder.name)
            words = f"--run {run_id}"
            try:
                read_launch(self.folder)
            except ConfigError:
                words = f"--cluster NAME {words}"
            hint = f"`{this_program()} pull {words}` downloads it again"
            raise NotReady([Problem("", message, hint)]) from error

    def append(self, event: Event) -> None:
        """Record an event, unless it is there already."""
        if _event_key(event) in self._known_events:
            return
        self._known_events.add(_event_key(event))
        line = b"\n" * self._has_torn_line + event.to_line().encode()
        self._has_torn_line = not self._append(self.folder / EVENTS_FILE, line)

    def write_log(self, node: str, name: str, offset: int, data: bytes) -> None:
        """Append a chunk of a stream, nothing twice nor beyond a gap."""
        path = self.logs / node / name
        local_size = self._sizes[path] if path in self._sizes else _file_size(path)
        if offset <= local_size < offset + len(data):
            is_complete = self._append(path, data[local_size - offset :])
            # If it was written in part, the next chunk is beyond a gap; `pull` fills it.
            local_size = offset + len(data) if is_complete else _file_size(path)
        self._sizes[path] = local_size

    def rerun_without_lost(self, plan: Plan, verdict: Verdict) -> str:
        """Return the command that repeats the run without the hosts that it lost, "" for none.

        There is none where the launch wanted so many nodes, or Slurm chose them.
        """
        lost = (*verdict.unverified, *verdict.unverified_before)
        left = {node.node for node in plan.nodes}.difference(lost)
        if verdict.state != LOST or not (lost and left):
            return ""
        try:
            spec = read_launch(self.folder).spec
        except ConfigError:
            return ""
        was_launched_here = (self.folder / OVERRIDES_FILE).exists()
        if spec.task.nnodes is not None or spec.slurm or not was_launched_here:
            return ""
        names = dict.fromkeys([*spec.cluster.exclude, *lost])
        words = [f"rerun={plan.run_id}", f"cluster.exclude=[{','.join(names)}]"]
        if spec.cluster.master in lost:
            words.append("cluster.master=null")
        return f"{this_program()} {command_line(words)}"

    def diagnose(self, plan: Plan, verdict: Verdict) -> Diagnosis | None:
        return diagnose(plan, verdict, self.tail, lambda: self._project_files(plan))

    def _project_files(self, plan: Plan) -> ProjectFiles | None:
        """Return the code that a run pushed, or used here; None if this machine lacks it."""
        with contextlib.suppress(ConfigError, OSError):
            launch = read_launch(self.folder)
            if plan.release:
                here = Path(launch.launched_from)
                places = run_index.code_places(self.folder)
                if release := find_release(places, plan.release):
                    paths = _modules((f.path for f in release.manifest.files), plan.subdirectory)
                    return ProjectFiles(paths, functools.partial(worktree.why_absent, here))
            elif are_local(launch.spec.nodes):
                here = Path(plan.nodes[0].cwd)
                tree = worktree.scan(here)
                paths = _modules(tree.sizes, os.path.relpath(here, tree.root))
                return ProjectFiles(paths, lambda _: "")
        return None

    def tail(self, node: str, name: str, lines: int) -> list[str]:
        try:
            with (self.logs / node / name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_AVG_LINE_BYTES * lines))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        # A shell quotes a line of Windows as "-\r: invalid option".
        rows = text.rstrip().replace("\r: ", "\\r: ").split("\n")[-lines:]
        # Of a progress bar, its last state.
        return [row.rstrip("\r").rpartition("\r")[2] for row in rows]

    def _append(self, path: Path, data: bytes) -> bool:
        """Append, or note why not (a full disk here must not end a run); return whether it did."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            self.write_error = self.write_error or f"cannot write {path}: {error.strerror}"
            return False
        return True

    def write_json(self, name: str, content: object) -> None:
        """Write a file of the record as JSON, whole or not at all; raise OSError."""
        self.write_text(name, json.dumps(encode(content), indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the record, whole or not at all; raise OSError."""
        replace_file(self.folder / name, [text.encode()])


def _modules(paths: Iterable[str], folder: str) -> set[str]:
    return {os.path.relpath(path, folder or ".") for path in paths if path.endswith(".py")}


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _event_key(event: Event) -> tuple[Any, ...]:
    return event.node, event.attempt, event.seq, type(event.body)
