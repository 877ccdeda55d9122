"""Results that tables show: of commands, downloads and sweeps, and where settings come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.core.errors import Problem


@dataclass
class CommandResult:
    node: str
    exit_code: int | None = None  # minus the signal that ended it; None while it is not known
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    problem: str = ""  # why it did not end by itself
    truncated: bool = False  # whether it printed more than is kept
    unverified: bool = False  # whether processes of it may be left
    lost: bool = False  # whether its host was, before it answered

    @property
    def is_done(self) -> bool:
        return self.exit_code is not None or bool(self.problem)


@dataclass
class PullResult:
    new_count: int = 0  # files that are new here, or have grown
    folders: set[str] = field(default_factory=set)  # where they are, below the run's folder
    existing_count: int = 0
    output_count: int = 0  # files there that the task's `outputs` name
    fetched_bytes: int = 0
    omitted_count: int = 0  # files beyond the limit of one pull
    notes: list[str] = field(default_factory=list)  # what was skipped on the host, and why
    problems: list[Problem] = field(default_factory=list)  # the first of the failed files
    failed_count: int = 0
    is_finished: bool = False  # whether all files of the host were visited

    @property
    def is_complete(self) -> bool:
        """Whether every file of this node is here."""
        return self.is_finished and not self.failed_count and not self.omitted_count


@dataclass(frozen=True)
class Setting:
    """One place that sets a key of the configuration."""

    where: str  # "FILE:LINE", "command line: WORD", or "default"
    value: str  # as YAML


@dataclass(frozen=True)
class Origin:
    """A value of the configuration, and the places that set it."""

    key: str
    value: str  # as YAML, with interpolations resolved and secrets as ***
    written: str  # as written; "" where that is the same
    settings: tuple[Setting, ...]  # the first one won
    problem: str = ""  # why it cannot be resolved
    meaning: str = ""  # of the key, and its legal values; "" for a key of the user's own


@dataclass(frozen=True)
class SweepRun:
    run_id: str
    changes: tuple[str, ...]  # the overrides that not all runs have
    exit_code: int | None = None  # None if it was not started
    seconds: float = 0.0
