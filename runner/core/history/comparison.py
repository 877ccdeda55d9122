"""Comparison of runs: what differs in their configuration and code, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from runner.core.history.run_data import RunData, flat_config

ARGUMENTS = "task.args"
NOTHING = "null"

WITHOUT_EFFECT = (
    *("run_id", "run_dir", "rerun", "dry_run", "ui", "detach", "console_ranks", "skip_checks"),
    *("pull_outputs", "notify", "deploy", "debug", "sample_s"),
)
"""Keys, or what their keys begin with, by which no run computes anything else."""


@dataclass(frozen=True)
class RunSummary:
    """One run of a comparison, large on purpose: its columns; None is for what is not known."""

    run_id: str
    cluster: str = ""
    task: str = ""
    started: Optional[float] = None
    state: str = ""  # of its verdict; "" if no end is on record
    exit_code: Optional[int] = None
    duration: Optional[float] = None  # in seconds
    gpu_hours: Optional[float] = None
    nodes: int = 0
    gpus: int = 0
    code: str = ""
    sweep_id: str = ""
    step: Optional[int] = None
    steps: Optional[int] = None
    metrics: Mapping[str, Optional[float]] = field(default_factory=dict)  # None: no number
    least_loss: Optional[float] = None
    config: Mapping[str, Optional[str]] = field(
        default_factory=dict
    )  # keys that differ; None: unset
    problems: Tuple[str, ...] = ()  # what of the record could not be read


@dataclass(frozen=True)
class Comparison:
    """Several runs beside each other."""

    runs: Tuple[RunSummary, ...]
    keys: Tuple[str, ...]  # of the configuration, whose values differ; those of the task first
    metrics: Tuple[str, ...]  # the loss first
    code_differs: bool


def compare_runs(runs: Sequence[RunData]) -> Comparison:
    """Compare runs."""
    values = differing_values(runs)
    configs = [{key: texts[i] for key, texts in values.items()} for i in range(len(runs))]
    names = dict.fromkeys(metric.name for run in runs for metric in run.metrics)
    first = [name for name in ("loss", "rate") if name in names]
    return Comparison(
        runs=tuple(map(_summary, runs, configs)),
        keys=tuple(values),
        metrics=(*first, *(name for name in names if name not in first)),
        code_differs=len({code_text(run) for run in runs}) > 1,
    )


def differing_values(runs: Sequence[RunData]) -> Dict[str, Tuple[Optional[str], ...]]:
    """Return the values of each key that differs, in the order of the runs; None: it is not set.

    The arguments of the task come first. A key that is null in one run and not set in another one
    does not differ, and a run whose configuration is unknown differs in nothing.
    """
    flats = [
        {key: value_text(value) for key, value in flat_config(run.config).items()} for run in runs
    ]
    known = [flat for flat in flats if flat]
    keys = dict.fromkeys(key for flat in known for key in flat if not without_effect(key))
    differing: Dict[str, Tuple[Optional[str], ...]] = {}
    for key in sorted(keys, key=lambda key: (not _is_argument(key), not key.startswith("task."))):
        if len({flat.get(key, NOTHING) for flat in known}) > 1:
            differing[key] = tuple(flat.get(key) for flat in flats)
    return differing


def without_effect(key: str) -> bool:
    """Return whether no run computes anything else by this key."""
    return key in WITHOUT_EFFECT or key.partition(".")[0] in WITHOUT_EFFECT


def _is_argument(key: str) -> bool:
    return key == ARGUMENTS or key.startswith(f"{ARGUMENTS}.")


def value_text(value: Any) -> str:
    """Return a value of the configuration as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: NOTHING, True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {value_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, float) and value == float(f"{value:g}"):
        return f"{value:g}"
    return str(value)


def code_text(run: RunData) -> str:
    """Return the name of a run's code: the commit, with "+" if files differ, and the release."""
    if not run.plans:
        return ""
    plan = run.plans[-1]
    commit = plan.commit[:9] + "+" * (len(plan.commit) > 9 and plan.commit.endswith("+"))  # noqa: PLR2004
    return " ".join(filter(None, (commit, plan.release[:8])))


def _summary(run: RunData, config: Mapping[str, Optional[str]]) -> RunSummary:
    verdict = run.verdict
    loss = next((metric for metric in run.metrics if metric.name == "loss"), None)
    seconds = run.seconds
    return RunSummary(
        run_id=run.run_id,
        cluster=run.cluster,
        task=run.task,
        started=run.launched_at,
        state=verdict.state if verdict else "",
        exit_code=verdict.exit_code if verdict else None,
        duration=verdict.seconds if verdict and seconds is None else seconds,
        gpu_hours=gpu_hours(run),
        nodes=len(run.plans[-1].nodes) if run.plans else 0,
        gpus=run.gpu_count,
        code=code_text(run),
        sweep_id=run.sweep_id,
        step=run.step,
        steps=run.steps,
        metrics={metric.name: metric.last for metric in run.metrics},
        least_loss=loss.least if loss else None,
        config=config,
        problems=run.problems,
    )


def gpu_hours(run: RunData) -> Optional[float]:
    """Return the number of GPUs times the hours of the attempts that had them; None while it is on.

    Attempts whose plan is not on record count with the GPUs that their nodes had in a later one.
    """
    if run.verdict is None or not run.plans:
        return None
    plans = {
        plan.attempt: {share.node: len(share.gpus) for share in plan.nodes} for plan in run.plans
    }
    of_node: Dict[str, int] = {}
    for counts in plans.values():
        of_node.update(counts)
    total = run.verdict.seconds * run.gpu_count
    for past in run.verdict.past_attempts:
        counts = plans.get(past.attempt, of_node)
        total += past.seconds * sum(counts.get(node, 0) for node in past.nodes)
    hours = total / 3600
    return hours if math.isfinite(hours) and hours >= 0 else None
