"""Results that verbs report: a command's, a download's, a run found on hosts, a value's origin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Mapping, Optional, Tuple

from runner.core.errors import Problem
from runner.core.model.run_info import HostRunStatus, RunInfo


@dataclass
class CommandResult:
    """The outcome of a command on one host.

    Attributes:
        node: The node.
        exit_code: The exit code, or minus the signal that ended it; None while it is not known.
        stdout: The command's standard output.
        stderr: The command's standard error.
        problem: The reason why it did not end by itself; "" for none.
        truncated: Whether it printed more than is kept.
        unverified: Whether processes of it may be left.
    """

    node: str
    exit_code: Optional[int] = None
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    problem: str = ""
    truncated: bool = False
    unverified: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.exit_code is not None or bool(self.problem)


@dataclass
class PullResult:
    """The outcome of a download from one node.

    Attributes:
        new_count: Files and links that are new here, or have grown.
        existing_count: Files that were here before.
        fetched_bytes: Bytes fetched.
        omitted_count: Files beyond the limit of one pull.
        notes: What was skipped on the host, and why.
        problems: The first of the files that could not be fetched.
        failed_count: How many files could not be fetched.
        is_finished: Whether all files of the host were visited.
    """

    new_count: int = 0
    existing_count: int = 0
    fetched_bytes: int = 0
    omitted_count: int = 0
    notes: List[str] = field(default_factory=list)
    problems: List[Problem] = field(default_factory=list)
    failed_count: int = 0
    is_finished: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every file of this node is here."""
        return self.is_finished and not self.failed_count and not self.omitted_count


@dataclass(frozen=True)
class RemoteRun:
    """A run as its hosts describe it.

    Attributes:
        info: The record of the whole run.
        by_host: The status on each host that answered and has the run.
    """

    info: RunInfo
    by_host: Mapping[str, HostRunStatus]

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.info.run_id


@dataclass(frozen=True)
class Setting:
    """One place that sets a key.

    Attributes:
        where: "FILE:LINE", "command line: WORD", or "default".
        key: The key that stands there: a node's value may be set by a range, or for all nodes.
        value: The value there, as YAML.
    """

    where: str
    key: str
    value: str


@dataclass(frozen=True)
class Origin:
    """A value of the configuration, and the places that set it.

    Attributes:
        key: The full key.
        value: The value as YAML, with interpolations resolved and secrets as ***.
        written: The value as written; "" where that is the same.
        settings: All places that set it; the first one won.
        problem: Why it cannot be resolved, or "".
    """

    key: str
    value: str
    written: str
    settings: Tuple[Setting, ...]
    problem: str = ""
