"""The controller's own record of a run: a folder written so that a cut leaves it readable."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from runner.control.record.folder_lock import claim
from runner.core.codec import decode, encode
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.outcome.diagnosis import diagnose
from runner.core.outcome.verdict import Verdict
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import Event, parse
from runner.core.protocol.paths import STACKS, log_name

LONGEST = 200
"""Bytes that a line has on average at most, where the last ones of a log are looked for."""


class RunStore:
    """`config.yaml`, `plan.json`, `events.jsonl`, `result.json`, `logs/NODE/rank_R.{out,err}`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.failed = ""
        self._made: list[Path] = []
        self._sizes: dict[Path, int] = {}
        self._known: set[tuple[Any, ...]] = set()
        self._lock = -1
        self._torn = False
        self._ignore = folder.parent / ".gitignore"

    @property
    def shown(self) -> Path:
        """The folder as a person who stands here would type it."""
        folder = os.path.relpath(self.folder)
        return self.folder if folder.startswith("..") else Path(folder)

    def reserve(self) -> None:
        """Make the folder, before anything is contacted.

        Raises:
            ConfigError: It holds another run, or cannot be made; names `run_dir`.
        """
        try:
            missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            for path in reversed(missing):
                path.mkdir(mode=0o700, exist_ok=path != self.folder)  # others may make the parents
                self._made.append(path)
            if self.folder.parent in self._made:  # records are nobody's code
                self._ignore.write_text("*\n", encoding="ascii")
            what = ""
            if any(self.folder.iterdir()):
                what = f"{self.folder} is there already; a run never writes over another"
        except OSError as error:
            self.abandon()
            what = f"cannot make {self.folder}: {error.strerror}"
        if what:
            hint = "set run_dir to a new folder, or another run_id"
            raise ConfigError([Problem("run_dir", what, hint)])

    def abandon(self) -> None:
        """Take the folder away again: nothing was started."""
        if self.folder.parent in self._made:
            with contextlib.suppress(OSError):
                self._ignore.unlink()
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()

    def create(self, config_yaml: str) -> None:
        """Begin the record with the configuration, and point `latest` beside it here.

        Raises:
            OSError: It cannot be written.
        """
        self.logs.mkdir(mode=0o700)
        self._claimed()
        self._write("config.yaml", config_yaml)
        latest = self.folder.parent / "latest"
        if latest.is_symlink() or not latest.exists():
            aside = self.folder.parent / f".latest.{os.getpid()}"
            aside.symlink_to(self.folder.name)
            aside.replace(latest)

    def join(self, config_yaml: str, plan: Plan) -> bool:
        """Go on with the record of a run that is followed again, or begin one.

        What is missing of one that was cut off is added.

        Returns:
            Whether it is ours to write: not while somebody else follows the run in this folder, or
            where it cannot be written, which `failed` tells.
        """
        try:
            if not self.folder.exists():
                self.reserve()
            if not self._claimed():
                return False
            self.logs.mkdir(mode=0o700, exist_ok=True)
            if not (self.folder / "config.yaml").exists():
                self._write("config.yaml", config_yaml)
            if plan.attempt > self._planned():
                self.write_plan(plan)
        except (OSError, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self.failed = f"cannot write in {self.folder}: {why}"
            return False
        self._known = {_name(parsed) for parsed in self._events()}
        return True

    def _planned(self) -> int:
        """Return the last attempt whose plan is on record, -1 for none."""
        try:
            data = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))
            return int(data["attempt"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def _events(self) -> Iterator[Event]:
        with contextlib.suppress(OSError):
            for line in (self.folder / "events.jsonl").read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    yield parse(line)

    def append_once(self, event: Event) -> None:
        """Record what happened, unless it is on record."""
        if _name(event) not in self._known:
            self._known.add(_name(event))
            self.append(event)

    def _claimed(self) -> bool:
        """Have the folder to ourselves, until `release` or the end of this process."""
        lock = claim(self.folder)
        self._lock = -1 if lock is None else lock
        return lock is not None

    def release(self) -> None:
        """Let others write here: we have written all we know."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def write_plan(self, plan: Plan) -> None:
        """Record what every host will be told; before it is told.

        The plan of attempt N before it stays, as `plan.N.json`.

        Raises:
            OSError: It cannot be written.
        """
        with contextlib.suppress(FileNotFoundError, ValueError):
            before = (self.folder / "plan.json").read_text(encoding="utf-8")
            number = int(json.loads(before)["attempt"])
            if number < plan.attempt:
                self._write(f"plan.{number}.json", before)
        self._write_json("plan.json", encode(plan))

    @property
    def ended(self) -> bool:
        """Whether it is on record how it ended."""
        return (self.folder / "result.json").exists()

    def write_result(self, plan: Plan, verdict: Verdict, began: float) -> None:
        """Record how it ended, and why; `began` in seconds since 1970."""
        times = {"began": began, "ended": began + verdict.seconds}
        why = diagnose(plan, verdict, self.tail)
        told = {**encode(verdict), "diagnosis": encode(why) if why else None}
        try:
            self._write_json("result.json", {"run_id": plan.run_id, **times, **told})
        except OSError as error:
            self.failed = self.failed or f"cannot write in {self.folder}: {error.strerror}"

    def read_result(self) -> tuple[Plan, Verdict]:
        """Return what ran, and how it ended.

        Raises:
            NotReady: That is not on record here, or cannot be read.
        """
        try:
            plan, verdict = (
                json.loads((self.folder / name).read_text(encoding="utf-8"))
                for name in ("plan.json", "result.json")
            )
            return decode(Plan, plan), decode(Verdict, verdict)
        except (OSError, ValueError) as error:
            what = f"the record of a run in {self.folder} cannot be read: {error}"
            raise NotReady([Problem("", what, "python -m runner pull brings it anew")]) from error

    def append(self, event: Event) -> None:
        """Record what happened."""
        line = event.line().encode()
        self._torn = not self._append(
            self.folder / "events.jsonl", b"\n" + line if self._torn else line
        )

    def write_log(self, node: str, name: str, offset: int, data: bytes) -> None:
        """Add a piece of one stream of one node: what we have is always a beginning of it.

        What is there already is not written twice, and nothing is written beyond a gap.
        """
        path = self.logs / node / name
        have = self._sizes.get(path)
        if have is None:
            have = _size(path)
        if offset <= have < offset + len(data):
            whole = self._append(path, data[have - offset :])
            # After a part of it, what comes next is beyond a gap; `pull` fills that.
            have = offset + len(data) if whole else _size(path)
        self._sizes[path] = have

    def tail(self, node: str, name: str, lines: int) -> list[str]:
        """Return the last lines of one stream."""
        try:
            with (self.logs / node / name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST * lines))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        rows = text.rstrip().split("\n")[-lines:]
        return [row.rstrip("\r").rpartition("\r")[2] for row in rows]  # of a progress bar, its last

    def stacks_of(self, attempt: int) -> Callable[[str], str]:
        """Return what reads a node's log of Python stacks, as far as it is here."""

        def read(node: str) -> str:
            path = self.logs / node / log_name(attempt, STACKS, "out")
            try:
                return path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                return ""

        return read

    def _append(self, path: Path, data: bytes) -> bool:
        """Append, or note in `failed` why not: a full disk here must not end a run elsewhere.

        Returns:
            Whether all of it was written.
        """
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            self.failed = self.failed or f"cannot write {path}: {error.strerror}"
            return False
        return True

    def _write_json(self, name: str, data: Any) -> None:
        self._write(name, json.dumps(data, indent=1) + "\n")

    def _write(self, name: str, text: str) -> None:
        aside = self.folder / f".{name}.new"
        aside.write_text(text, encoding="utf-8")
        aside.replace(self.folder / name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _name(event: Event) -> tuple[Any, ...]:
    """Return what tells an event from all others of its run."""
    return event.node, event.attempt, event.seq, type(event.body)
