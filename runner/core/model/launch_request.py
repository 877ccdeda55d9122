"""Launch request: the result of composing the configuration, which a launch carries out."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path
from typing import FrozenSet, Optional, Tuple

from runner.core import shell
from runner.core.model.release import CodeRef
from runner.core.model.spec import Spec

_CONNECTION_OVERRIDE = re.compile(
    r"[+]{0,2}cluster\.(workdir|transport|host_python|ssh\..*|"
    r"nodes\.[^.=]+\.(host|user|port|transport))="
)
"""Overrides that decide how hosts are reached, and where they keep runs."""


class DryRun(str, enum.Enum):
    """Whether to show the plan in place of a launch, and whether to contact hosts for it."""

    OFF = "false"
    ON = "true"
    OFFLINE = "offline"


@dataclass(frozen=True)
class RecordedCode:
    """The code of a past run that is to run again."""

    run_id: str
    code: CodeRef


@dataclass(frozen=True)
class LaunchRequest:
    """One run, as the command line and the YAML ask for it."""

    spec: Spec
    dry_run: DryRun
    run_dir: Path  # the run's folder on this machine, absolute
    ui: str  # "auto" or "plain"
    console_ranks: Optional[FrozenSet[int]]  # whose output is shown; None for all
    config_yaml: str  # all of it, with interpolations unresolved
    sources: Tuple[str, ...] = ()  # the YAML files that were chosen, as "GROUP/OPTION: PATH"
    notes: Tuple[str, ...] = ()  # files that shadow others, a task that is replaced
    overrides: Tuple[str, ...] = ()  # of the command line
    config_dirs: Tuple[str, ...] = ()  # the folders of YAML that it named
    recorded_code: Optional[RecordedCode] = None  # to run with, if this is a past run again
    plan_as_json: bool = False  # whether a dry run prints the plan as JSON

    @property
    def cluster_selector(self) -> str:
        """The options, as shell text, by which any verb finds the same hosts."""
        args = ["--cluster", self.spec.cluster]
        args += [word for word in self.overrides if _CONNECTION_OVERRIDE.match(word)]
        args += [word for folder in self.config_dirs for word in ("--config-dir", folder)]
        return shell.line(args)
