"""Summary of a run in a page: its facts, its first failure, and the commands that come next."""

from __future__ import annotations

from typing import Any

from runner.core.history.comparison import code_text, gpu_hours
from runner.core.history.run_data import RunData
from runner.core.model.plan import Plan
from runner.core.outcome.first_failure import failure_text
from runner.core.outcome.verdict import Verdict
from runner.core.shell import line, this_program
from runner.core.text import (
    counted,
    format_duration,
    join_some,
    printable,
    printable_lines,
)
from runner.ui.layout import fold_names

NO_END = "no end on record"
"""The state of a run that is on, or whose end nobody has brought here."""

MAX_NAMES = 40


def state_of(run: RunData) -> str:
    """Return how a run ended in a word, or that this is not known."""
    return run.verdict.state if run.verdict else NO_END


def duration_text(run: RunData) -> str:
    """Return how long a run lasted, "" if that is not known."""
    return "" if run.seconds is None else format_duration(run.seconds)


def gpu_hours_text(run: RunData) -> str:
    """Return the GPU hours that a run took, "" for none or if they are not known."""
    hours = gpu_hours(run)
    return f"{hours:.3g}" if hours else ""


def facts(run: RunData) -> list[list[str]]:
    """Return what a run was, as pairs of a name and a text, without what is not known."""
    plan = run.plans[-1] if run.plans else None
    pairs = [
        ("task", run.task),
        ("cluster", run.cluster),
        ("size", _size(plan) if plan else ""),
        ("GPUs", str(run.gpu_count or "")),
        ("duration", duration_text(run)),
        ("GPU hours", gpu_hours_text(run)),
        ("launched by", run.launched_by),
        ("exit code", str(run.verdict.exit_code) if run.verdict else ""),
        ("code", code_text(run)),
        ("image", plan.image if plan else ""),
        ("backend", plan.backend if plan else ""),
        ("sweep", run.sweep_id),
        ("overrides", line(run.overrides)),
        ("record", run.folder),
    ]
    return [[name, printable(text)] for name, text in pairs if text]


def _size(plan: Plan) -> str:
    names = [node.node for node in plan.nodes]
    folded = fold_names(names) if len(names) <= MAX_NAMES else join_some(names)
    return f"{counted(len(names), 'node')} ({folded}), {counted(plan.world_size, 'rank')}"


def first_failure(run: RunData) -> dict[str, Any] | None:
    """Return the first failure with its meaning, remedy and last words; None for none."""
    verdict = run.verdict
    if verdict is None or verdict.first_failure is None:
        return None
    failure, found = verdict.first_failure, run.diagnosis
    lines = (*found.context, *found.excerpt) if found else ()
    result = verdict.ranks.get(str(failure.rank)) if failure.rank is not None else None
    text = "\n".join(lines) or (result.traceback if result else "")
    return {
        "title": printable(failure_text(failure)),
        "node": printable(failure.node),
        "rank": failure.rank,
        "meaning": printable(found.meaning) if found else "",
        "remedy": printable(found.remedy) if found else "",
        "text": printable_lines(text),
        "others": _others(verdict),
    }


def _others(verdict: Verdict) -> str:
    texts = []
    if verdict.same_failures:
        texts.append(f"{counted(verdict.same_failures, 'other rank')} failed in the same way")
    if verdict.consequences > 0:
        texts.append(f"{counted(verdict.consequences, 'rank')} failed as a consequence")
    if verdict.unverified:
        names = fold_names(verdict.unverified)
        texts.append(f"not proven that nothing is left on {names}")
    return printable("; ".join(texts))


def next_commands(run: RunData) -> list[list[str]]:
    """Return what to type next about a run, as pairs of a purpose and a command."""
    flags = line(["--run", run.run_id])
    if run.verdict is None:
        commands = [
            ("follow it in this page", f"{this_program()} report {run.run_id} --watch 5"),
            ("follow its output", f"{this_program()} attach {flags}"),
            ("ask its hosts how it ended", f"{this_program()} why {flags}"),
            ("see where each rank is", f"{this_program()} stacks {flags}"),
            ("end it", f"{this_program()} stop {flags}"),
        ]
    else:
        commands = [
            ("how it ended, and why", f"{this_program()} why {flags}"),
            ("all of its logs", f"{this_program()} logs {flags}"),
            ("bring what it wrote here", f"{this_program()} pull {flags}"),
            ("run it once more", f"{this_program()} {line([f'rerun={run.run_id}'])}"),
        ]
    return [[purpose, printable(command)] for purpose, command in commands]
