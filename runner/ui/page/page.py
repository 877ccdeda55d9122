"""The page itself: what the template shows of each run, and the file that it becomes.

Nothing but the scripts of this package can run in it, and nothing can be loaded into it.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from runner.core.history.comparison import (
    best_word,
    code_text,
    differing_values,
    flat_config,
    gpu_hours,
    set_values,
)
from runner.core.history.run_data import LogTail, RunData
from runner.core.outcome.first_failure import failure_text
from runner.core.outcome.verdict import Verdict
from runner.core.shell import line, this_program
from runner.core.text import counted, format_duration, format_size, printable, printable_lines
from runner.ui.figures import number_text
from runner.ui.layout import fold_names
from runner.ui.page.charts import load_charts, metric_charts
from runner.ui.page.timeline import EventRow, Timeline, event_rows, timeline

NO_END = "no end on record"

MAX_LOGS = 400
MAX_LOG_CHARS = 4_000_000
MIN_LOG_CHARS = 400
"""A page has about so many characters of logs; where there are many, each is shorter."""


@dataclass(frozen=True)
class Failure:
    """Why a run failed, or where it hangs."""

    title: str
    meaning: str
    remedy: str
    text: str  # the traceback or the stacks
    others: str


@dataclass(frozen=True)
class RunView:
    """One run, large on purpose: what the template shows of it."""

    run_id: str
    number: int
    state: str
    mood: str  # the class of its colour: good, bad or other
    headline: str
    facts: list[tuple[str, str]]
    failure: Failure | None
    timeline: Timeline
    events: list[EventRow]
    keys: list[tuple[str, str]]  # that were set
    config: list[tuple[str, str]]
    logs: list[tuple[str, str]]
    commands: list[tuple[str, str]]
    problems: list[str]


def render_page(
    runs: Sequence[RunData],
    *,
    before: RunData | None = None,
    defaults: Mapping[str, str] | None = None,
    refresh_s: int = 0,
) -> str:
    """Return the page of these runs.

    Args:
        runs: One, or several that are compared.
        before: The run that a single one is compared with.
        defaults: The values of keys that nobody has to set, as texts.
        refresh_s: How often a browser reads the page again; 0 for never.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    origins = [_origin(run) for run in runs]
    compared = [before, *runs] if before and len(runs) == 1 else list(runs)
    charts = {
        "metrics": metric_charts(runs, origins),
        "load": load_charts(runs, origins),
    }
    styles = [_asset("vendor/uplot/uPlot.min.css"), _asset("page.css")]
    scripts = [_asset("vendor/uplot/uPlot.iife.min.js"), _asset("page.js")]
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        title=", ".join(printable(run.run_id) for run in runs),
        policy=_policy(styles, scripts),
        refresh_s=refresh_s,
        styles=styles,
        scripts=scripts,
        charts=charts,
        runs=[
            _view(run, number, origin, defaults or {}, len(runs))
            for number, (run, origin) in enumerate(zip(runs, origins, strict=True))
        ],
        compared=[printable(run.run_id) for run in compared],
        differences=_differences(compared) if len(compared) > 1 else [],
    )


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    rules = {
        "default-src": "'none'",
        "style-src": " ".join(map(_hash_source, styles)),
        "script-src": " ".join(map(_hash_source, scripts)),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _asset(path: str) -> str:
    return files(__package__).joinpath(path).read_text(encoding="utf-8")


def _origin(run: RunData) -> float:
    """Return the launch, or the first that is known of the run."""
    if run.launched_at is not None:
        return run.launched_at
    return run.events[0].wall if run.events else 0.0


def _view(
    run: RunData, number: int, origin: float, defaults: Mapping[str, str], run_count: int
) -> RunView:
    end = run.ended_at
    if end is None:
        seen = [run.events[-1].wall] if run.events else []
        end = max([origin, *seen, *([time.time()] if run.verdict is None else [])])
    return RunView(
        run_id=printable(run.run_id),
        number=number,
        state=run.verdict.state if run.verdict else NO_END,
        mood=_mood(run.verdict),
        headline=_headline(run),
        facts=_facts(run),
        failure=_failure(run),
        timeline=timeline(run, origin, end),
        events=event_rows(run, origin),
        keys=_printable(set_values(run, defaults)),
        config=_printable(flat_config(run.config)),
        logs=_logs(run.logs, run_count),
        commands=_commands(run),
        problems=[printable(problem) for problem in run.problems],
    )


def _printable(values: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(printable(key), printable(text)) for key, text in values.items()]


def _mood(verdict: Verdict | None) -> str:
    if verdict is None:
        return "other"
    return {"succeeded": "good", "failed": "bad", "lost": "bad"}.get(verdict.state, "other")


def _headline(run: RunData) -> str:
    if run.verdict is None:
        return "It is still running, or its end was not recorded here."
    after = "" if run.seconds is None else f" after {format_duration(run.seconds)}"
    return f"{run.verdict.state.capitalize()}{after}, exit code {run.verdict.exit_code}"


def _facts(run: RunData) -> list[tuple[str, str]]:
    """Return what a run was, as pairs of a name and a text, without what is not known."""
    plan = run.plans[-1] if run.plans else None
    hours = gpu_hours(run)
    size = ""
    if plan:
        nodes = counted(len(plan.nodes), "node")
        names = fold_names(node.node for node in plan.nodes)
        size = f"{nodes} ({names}), {counted(plan.world_size, 'rank')}"
    rate = next((metric for metric in run.metrics if metric.name == "rate"), None)
    loss = next((metric for metric in run.metrics if metric.name == "loss"), None)
    steps = f" of {run.steps}" if run.steps else ""
    pairs = [
        ("task", run.task),
        ("cluster", run.cluster),
        ("size", size),
        ("GPUs", str(run.gpu_count or "")),
        ("backend", plan.backend if plan else ""),
        ("image", plan.image if plan else ""),
        ("code", code_text(run)),
        ("attempts", str(len(run.plans)) if len(run.plans) > 1 else ""),
        ("step", "" if run.step is None else f"{run.step}{steps}"),
        ("last loss", number_text(loss.last) if loss and loss.last is not None else ""),
        ("last rate", number_text(rate.last) if rate and rate.last is not None else ""),
        ("GPU hours", number_text(hours) if hours else ""),
        ("launched by", run.launched_by),
        ("record", run.folder),
    ]
    return [(name, printable(text)) for name, text in pairs if text]


def _failure(run: RunData) -> Failure | None:
    """Return the first failure, or the stall of a run that was ended for it."""
    verdict = run.verdict
    found = run.diagnosis
    first = verdict.first_failure if verdict else None
    if first is None and found is None:
        return None
    lines = (*found.context, *found.excerpt) if found else ()
    result = verdict.ranks.get(str(first.rank)) if verdict and first else None
    text = "\n".join(lines) or (result.traceback if result else "")
    return Failure(
        title=printable(failure_text(first)) if first else "No rank made progress any more",
        meaning=printable(found.meaning) if found else "",
        remedy=printable(found.remedy) if found else "",
        text=printable_lines(text),
        others=_others(verdict) if verdict else "",
    )


def _others(verdict: Verdict) -> str:
    texts = []
    if verdict.same_failures:
        texts.append(f"{counted(verdict.same_failures, 'other rank')} failed in the same way")
    if verdict.consequences > 0:
        texts.append(f"{counted(verdict.consequences, 'rank')} failed as a consequence")
    if verdict.unverified:
        texts.append(f"not proven that nothing is left on {fold_names(verdict.unverified)}")
    return printable("; ".join(texts))


def _differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Return the results of runs, and what differs in their code and configuration."""
    ends = [run.verdict.state if run.verdict else NO_END for run in runs]
    spans = ["-" if run.seconds is None else format_duration(run.seconds) for run in runs]
    rows = [("end", ends), ("duration", spans)]
    by_run = [{metric.name: metric for metric in run.metrics} for run in runs]
    for name in dict.fromkeys(name for metrics in by_run for name in metrics):
        best = best_word(name)
        for word in ("last", best):
            numbers = [getattr(metrics.get(name), word, None) for metrics in by_run]
            texts = ["-" if number is None else number_text(number) for number in numbers]
            rows.append((printable(f"{name}, {word}"), texts))
    rows.append(("code", [printable(code_text(run)) or "-" for run in runs]))
    for key, values in differing_values(runs).items():
        rows.append((printable(key), [printable(value or "-") for value in values]))
    return rows


def _logs(logs: Sequence[LogTail], run_count: int) -> list[tuple[str, str]]:
    """Return the ends of logs, as pairs of a title and a text."""
    shown = [log for log in logs if log.text.strip()][:MAX_LOGS]
    limit = max(MIN_LOG_CHARS, MAX_LOG_CHARS // (run_count * max(1, len(shown))))
    folds = []
    for log in shown:
        who = f"{log.node}, attempt {log.attempt + 1}, {log.source.replace('_', ' ')}"
        title = printable(f"{who} ({log.stream}), {format_size(log.size)}")
        folds.append((title, printable_lines(log.text[-limit:])))
    return folds


def _commands(run: RunData) -> list[tuple[str, str]]:
    """Return what to type next about a run, as pairs of a purpose and a command."""
    flags = line(["--run", run.run_id])
    told = [
        ("how it ended, and why", f"why {flags}"),
        ("all of its logs", f"logs {flags}"),
        ("bring what it wrote here", f"pull {flags}"),
        ("run it once more", line([f"rerun={run.run_id}"])),
    ]
    if run.verdict is None:
        told = [
            ("follow its output", f"attach {flags}"),
            ("ask its hosts how it ended", f"why {flags}"),
            ("see where each rank is", f"stacks {flags}"),
            ("end it", f"stop {flags}"),
        ]
    return [(purpose, printable(f"{this_program()} {words}")) for purpose, words in told]
