"""Results of `deploy`, `clean`, `pull`, `explain`, `stacks` and `exec`, with equal ones merged.

Those of hosts are merged by their names; those of ranks are their stacks, the exceptions first.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.core.errors import Problem, fold_names
from runner.core.outcome.stacks import StackGroup, StackReport, summary
from runner.core.results import CommandResult, Origin, PullResult, SweepRun
from runner.core.shell import this_program
from runner.core.wire.paths import RunPaths
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import RunInfo
from runner.core.wire.text import (
    counted,
    describe_exit,
    format_duration,
    format_ranges,
    format_size,
    printable,
)
from runner.ui.layout import aligned, group_names, terminal_width, wrap_lines
from runner.ui.reports.report import code_name
from runner.ui.reports.run_table import run_lines

INNERMOST = 8  # the number of frames shown at either end of a stack
OUTERMOST = 3


@dataclass(frozen=True)
class PushResult:
    release: str
    commit: str  # the one it was made from, with "+" if files differ; "" without git
    files: int
    size: int  # bytes
    seconds: float
    sent: Mapping[str, int | None]  # bytes from here by node; None for one that had the release


def render_push(result: PushResult) -> str:
    contents = f"{counted(result.files, 'file')}, {format_size(result.size)}"
    by_node = (
        (name, "had it" if sent is None else f"stored, {format_size(sent)} sent")
        for name, sent in result.sent.items()
    )
    rows = [(fold_names(names), text) for text, names in group_names(by_node).items()]
    return "\n".join([code_name(result.release, result.commit), f"  {contents}", *aligned(rows)])


@dataclass(frozen=True)
class CleanResult:
    runs: tuple[str, ...]
    releases: tuple[str, ...]
    environments: tuple[str, ...]
    kept: tuple[str, ...]  # tasks whose folders outlived their runs
    in_use: tuple[str, ...]  # runs that are old enough
    size: int  # bytes on the host's disk

    @staticmethod
    def from_reply(reply: Mapping[str, Any]) -> CleanResult:
        names = ("runs", "releases", "environments", "kept", "in_use", "bytes")
        return CleanResult(*(reply[name] for name in names))


def render_clean(
    results: Mapping[str, CleanResult],
    runs: Mapping[str, RunInfo],
    older_than: str,
    *,
    dry_run: bool,
    reader: str = "",
) -> str:
    """Return what was removed, with equal hosts merged; all of `runs` if it is a dry run.

    The `reader` is whose runs need not be told whose they are.
    """
    lines = []
    verb = "would be removed" if dry_run else "removed"
    unsized = ((name, replace(result, size=0)) for name, result in results.items())
    for result, names in group_names(unsized).items():
        found = {"run": result.runs, "release": result.releases, "environment": result.environments}
        counts = [counted(len(each), word) for word, each in found.items() if each]
        if result.kept:
            counts.append(f"what {counted(len(result.kept), 'task')} kept")
        freed = format_size(sum(results[name].size for name in names))
        line = f"{fold_names(names)}: {' and '.join(counts) or 'nothing'} {verb}, {freed}"
        line += " in all" if len(names) > 1 else ""
        if result.in_use:
            line += f"; kept, with files of others or in use: {', '.join(result.in_use)}"
        lines.append(line)
        if dry_run:
            removed = [runs[name] for name in result.runs]
            lines += [f"  {line}" for line in run_lines(removed, reader)]
            lines += [f"  release {name}" for name in result.releases]
            lines += [f"  environment {name}" for name in result.environments]
            lines += [f"  folders of task {place}" for place in result.kept]
    if not any(
        each.runs or each.releases or each.environments or each.kept for each in results.values()
    ):
        lines.append(f"nothing unused is older than {older_than}")
    return "\n".join(lines)


def render_sweep(
    runs: Sequence[SweepRun], *, is_planned: bool, compared: Collection[str] = ()
) -> str:
    """Return what became of each run of a sweep, and how many succeeded, or could be planned.

    Those whose ids are in `compared` have a line elsewhere.
    """
    rows = []
    for swept in runs:
        took = "not started" if swept.exit_code is None else format_duration(swept.seconds)
        code = "" if swept.exit_code is None else str(swept.exit_code)
        if swept.run_id not in compared:
            rows.append((swept.run_id, " ".join(swept.changes), code, took))
    lines = aligned([("run", "differs in", "exit", "took"), *rows]) if rows else []
    codes = [swept.exit_code for swept in runs]
    verb = "could be planned, nothing was started" if is_planned else "succeeded"
    left = f", {codes.count(None)} not started" if None in codes else ""
    return "\n".join([*lines, f"{codes.count(0)} of {len(runs)} runs {verb}{left}"])


def render_pull(results: Mapping[str, PullResult], folder: str, outputs: Sequence[str] = ()) -> str:
    """Return what was and was not downloaded; nodes with equal counts share an entry.

    `outputs` are the patterns of the outputs that were asked for.
    """
    new_names = [name for name, result in results.items() if result.new_count]
    total = sum(result.new_count for result in results.values())
    existing = sum(result.existing_count for result in results.values())
    lines = ["nothing was pulled"]
    if total:
        size = format_size(sum(result.fetched_bytes for result in results.values()))
        folders = [f"{folder}/{each}" for result in results.values() for each in result.folders]
        into = posixpath.commonpath(folders) if folders else folder
        origin = f"from {fold_names(new_names)}"
        lines = [f"pulled {counted(total, 'file')}, {size}, into {into}, {origin}"]
    elif existing:
        lines = [f"nothing new; {counted(existing, 'file')} in {folder}"]
    if outputs and not any(result.output_count for result in results.values()):
        lines.append(f"  no file that is new or changed matched {', '.join(outputs)}")
    for name, result in results.items():
        lines += [f"  {name}: {note}" for note in result.notes]
        if omitted := result.omitted_count:
            lines.append(f"  {name}: {omitted:,} more were left out: too many for one pull")
        if (unnamed := result.failed_count - len(result.problems)) > 0:
            lines.append(f"  {name}: {counted(unnamed, 'file')} more could not be fetched")
    return "\n".join(lines)


def outputs_left(plan: Plan) -> str:
    """Return where the files of ranks stay that no key names."""
    work = RunPaths(plan.nodes[0].order.workdir, plan.run_id, "NODE").work
    place = work if plan.release else plan.nodes[0].cwd
    told = f"  task.outputs names nothing: what the ranks wrote stays in {place} on each host"
    return f"{told}\n  {this_program()} pull {plan.run_id} 'checkpoints/*'  # such files of it"


def pull_problems(results: Mapping[str, PullResult]) -> list[Problem]:
    """Return all problems of all nodes; the hint only with the last of each node."""
    merged = []
    for result in results.values():
        merged += [Problem(problem.subject, problem.message) for problem in result.problems[:-1]]
        merged += result.problems[-1:]
    return merged


def render_origins(values: Iterable[Origin]) -> str:
    blocks = []
    for origin in values:
        blocks.append(f"{origin.key}: {origin.problem or origin.value}")
        if origin.written:
            blocks.append(f"  written as {origin.written}")
        for number, setting in enumerate(origin.settings):
            overridden = "" if number == 0 else f" (overridden: {setting.value})"
            blocks.append(f"  {setting.where}{overridden}")
        if origin.meaning:
            blocks.append(wrap_lines(f"  # {origin.meaning}", terminal_width() - 1))
    return "\n".join(blocks)


def render_stacks(report: StackReport, unreachable: Sequence[Problem]) -> str:
    """Return the stacks of all ranks; `unreachable` are the problems of hosts without any."""
    lines = [printable(text)] if (text := summary(report)) else []
    for group in report.groups:
        lines += _stack_lines(report, group)
    lines += [f"{problem.subject}: {problem.message}" for problem in unreachable]
    return "\n".join(lines)


def stacks_as_data(
    run_id: str, report: StackReport, unreachable: Sequence[Problem]
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "says": summary(report),
        "groups": [
            {
                "ranks": group.ranks,
                "waits_in": group.collective,
                "program": group.stack.program,
                "by": group.stack.method,
                "frames": [asdict(frame) for frame in group.stack.frames],
            }
            for group in report.groups
        ],
        "ended": report.ended,
        "unknown": report.unknown,
        "silent": {problem.subject: problem.message for problem in unreachable},
    }


def _stack_lines(report: StackReport, group: StackGroup) -> list[str]:
    nodes = report.node_of_rank
    names = fold_names(nodes[rank] for rank in group.ranks if rank in nodes)
    title = f"{format_ranges(group.ranks)} on {names}"
    frames = group.stack.frames
    if not frames:
        program = f", {printable(group.stack.program)}" if group.stack.program else ""
        return [f"  {title}{program}: {printable(group.stack.method)}"]
    cells = [
        (each.function, f"{each.file}:{each.line}" if each.line else each.file) for each in frames
    ]
    rows = aligned(cells, indent="    ")
    if len(rows) > INNERMOST + OUTERMOST + 1:
        left_out = len(rows) - INNERMOST - OUTERMOST
        rows[INNERMOST:-OUTERMOST] = [f"    … {left_out} more …"]
    return [f"  {title}, innermost first:", *rows]


def render_failures(results: Iterable[CommandResult]) -> str:
    """Return how a command failed, with equal failures of hosts merged; "" if it did nowhere."""
    groups = group_names((each.node, _status_text(each)) for each in results)
    groups.pop("", None)
    return "\n".join(f"{fold_names(names)}{status}" for status, names in groups.items())


def _status_text(result: CommandResult) -> str:
    if result.problem:
        return f": {result.problem}"
    code = result.exit_code or 0
    if code < 0:
        return f": {describe_exit(None, -code).removeprefix('was ')}"
    return f": exit {code}" if code else ""
