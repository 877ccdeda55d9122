"""All that one run was asked to be: what configuring hands over to launching."""

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
    r"[+]{0,2}cluster\.(workdir|transport|host_python|ssh\..*|nodes\.[^.=]+\.(host|user|port|transport))="
)
"""Words of a command line that say how hosts are reached, and where runs are kept there."""


class DryRun(str, enum.Enum):
    """What to do in place of a launch: nothing, show the plan, show it without asking any host."""

    OFF = "false"
    ON = "true"
    OFFLINE = "offline"


@dataclass(frozen=True)
class RecordedCode:
    """The code of a past run that is to run once more, and no other.

    Attributes:
        run_id: The past run.
        code: What travelled with it.
    """

    run_id: str
    code: CodeRef


@dataclass(frozen=True)
class LaunchRequest:
    """All that one run was asked to be, as plain data.

    Attributes:
        spec: What to run, and where.
        dry_run: What to do in place of a launch.
        plan_as_json: Whether a dry run prints the plan as JSON.
        run_dir: The run's folder on this machine, absolute.
        ui: "auto" or "plain".
        console_ranks: The ranks whose output is shown; None for all.
        config_yaml: The whole configuration, its interpolations unresolved.
        sources: The YAML files that were chosen, as "GROUP/OPTION: PATH".
        notes: What the user should hear: files that shadow others, a task set aside.
        task_option: The name of the task's YAML file.
        overrides: The words of the command line.
        config_dirs: The folders of YAML that it named.
        recorded_code: The code it has to run with, where it is a past run again.
    """

    spec: Spec
    dry_run: DryRun
    run_dir: Path
    ui: str
    console_ranks: Optional[FrozenSet[int]]
    config_yaml: str
    sources: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()
    task_option: str = ""
    overrides: Tuple[str, ...] = ()
    config_dirs: Tuple[str, ...] = ()
    recorded_code: Optional[RecordedCode] = None
    plan_as_json: bool = False

    @property
    def cluster_selector(self) -> str:
        """The words by which any verb finds the same hosts again, for a shell."""
        args = ["--cluster", self.spec.cluster]
        args += [word for word in self.overrides if _CONNECTION_OVERRIDE.match(word)]
        args += [word for folder in self.config_dirs for word in ("--config-dir", folder)]
        return shell.line(args)
