"""The verb `export`: runs for the tools of others."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from runner.cli.verb import verb
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.shell import line
from runner.core.text import counted
from runner.ui.output import note, show


@verb(
    "export",
    run="a run id or its beginning, latest, a folder, or a sweep's id; repeatable",
    tensorboard="write TensorBoard's event files into this folder, below it one for each run",
)
def export(run: tuple[str, ...] = (), tensorboard: str = "") -> int:
    """Write the metrics and samples of runs on record for TensorBoard.

    Without a RUN, it is the latest one. A repeated export replaces the one before.
    """
    from runner.control.history.named_runs import named_records
    from runner.workflows.history.incomplete_records import NO_FIGURES, note_incomplete
    from runner.workflows.history.tensorboard_export import export_runs

    if not tensorboard:
        raise ConfigError([Problem("export", "needs a folder", "--tensorboard DIR")])
    records = named_records(run or ("latest",))
    try:
        exports = export_runs(records, Path(tensorboard))
    except ImportError as error:
        argv = [sys.executable, "-m", "pip", "install", "tensorboard"]
        if importlib.util.find_spec("pip") is None:  # as in an environment that uv made
            argv = ["uv", "pip", "install", "--python", sys.executable, "tensorboard"]
        message = "tensorboard is not installed here"
        raise NotReady([Problem("--tensorboard", message, line(argv))]) from error
    for each in exports:
        if each.scalars:
            show(f"{Path(tensorboard, each.run_id)}: {counted(each.scalars, 'scalar')}")
        elif each.has_ended:
            note(f"{each.run_id} {NO_FIGURES}")
    show(f"  {line(['tensorboard', '--logdir', tensorboard])}")
    note_incomplete([each.run_id for each in exports if not each.has_ended], "the export")
    return 0
