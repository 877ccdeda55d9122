"""Launch request: a run as the command line and the YAML ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.core import shell
from runner.core.spec import Spec
from runner.core.wire.plan import CodeRef


@dataclass(frozen=True)
class RecordedCode:
    run_id: str
    code: CodeRef
    places: tuple[Path, ...]  # folders on this machine where it may be kept


@dataclass(frozen=True)
class SweepPlace:
    sweep: str  # its id
    number: int  # from 1
    count: int
    changes: tuple[str, ...]  # the overrides that not all of its runs have


@dataclass(frozen=True)
class LaunchRequest:
    spec: Spec
    run_dir: Path  # the run's folder on this machine, absolute
    config_yaml: str  # all of it, with interpolations unresolved
    notes: tuple[str, ...] = ()  # about what was typed
    file_notes: tuple[str, ...] = ()  # what is said once of the files
    overrides: tuple[str, ...] = ()  # of the command line
    contact_words: tuple[str, ...] = ()  # those by which any verb reaches the same hosts
    config_dirs: tuple[str, ...] = ()  # the folders of YAML that it named
    recorded_code: RecordedCode | None = None  # to run with, if this is a past run again
    sweep: SweepPlace | None = None  # if it is one of a sweep
    on_record: bool = False  # whether the record in `run_dir` says all of this by the run's id
    launched_at: float = 0.0  # since 1970; with the run's id it tells a run from all others
    launched_from: str = ""  # the folder
    names_program: bool = True  # else the task is the shipped default

    @property
    def selector(self) -> str:
        """The words, as shell text, by which any verb finds the same hosts; "" if it needs none."""
        if self.on_record:
            return ""
        folders = [word for folder in self.config_dirs for word in ("--config-dir", folder)]
        return shell.line([*self.contact_words, *folders])

    def run_flags(self, run_id: str) -> str:
        """Return the words, as shell text, by which any verb finds a run of these hosts."""
        return " ".join(filter(None, (f"--run {run_id}", self.selector)))
