"""History of runs: their records on the controller's machine as plain data, and how they differ.

Times are in seconds since 1970, by the clocks of those who wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.spec import Spec, written_defaults
from runner.core.wire.events import Event
from runner.core.wire.plan import Plan

ARGUMENTS = "task.args."
NOTHING = "null"

WITHOUT_EFFECT = (
    "run_id",
    "run_dir",
    "rerun",
    "dry_run",
    "ui",
    "detach",
    "console_ranks",
    "skip_checks",
    "pull_outputs",
    "notify",
    "deploy",
    "debug",
    "sample_s",
)
"""Keys, or what their keys begin with, by which no run computes anything else."""


class LoadFigure(NamedTuple):
    title: str
    name: str
    is_gpu: bool
    unit: str


LOAD_FIGURES = (
    LoadFigure("GPU utilization", "utilization", True, "%"),
    LoadFigure("GPU memory", "memory_used", True, "B"),
    LoadFigure("GPU power", "power_w", True, "W"),
    LoadFigure("GPU temperature", "temperature_c", True, "°C"),
    LoadFigure("CPU", "cpu", False, "%"),
    LoadFigure("memory", "memory_used", False, "B"),
)
"""What pages and exports show of samples."""


@dataclass(frozen=True)
class Series:
    """A figure by steps or by times; a value is None where it is no number."""

    at: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A figure that ranks print ("loss", "rate", or a name of theirs): of the lowest that does."""

    name: str
    unit: str = ""
    rank: int = 0
    last: float | None = None  # at its last step
    least: float | None = None
    most: float | None = None
    by_attempt: Mapping[int, Series] = field(default_factory=dict)


@dataclass(frozen=True)
class LogTail:
    """The end of a log: `text` has the last lines, `size` is in bytes."""

    node: str
    attempt: int
    source: str  # "rank_3", or "program"
    stream: str  # "out" or "err"
    text: str
    size: int


@dataclass(frozen=True)
class RunData:
    """The record of one run, large on purpose: all that tables, exports and pages are made of.

    `problems` are what of it could not be read, one line each; nothing of these raises.
    """

    run_id: str
    folder: str  # its record on this machine
    cluster: str = ""
    task: str = ""
    launched_by: str = ""
    launched_at: float | None = None
    ended_at: float | None = None  # None while it is on, or if that is not known
    verdict: Verdict | None = None  # None while it is on, or if that is not known
    diagnosis: Diagnosis | None = None
    plans: tuple[Plan, ...] = ()  # of its attempts on record, the last one at the end
    config: Mapping[str, Any] = field(default_factory=dict)  # nested, as composed
    events: tuple[Event, ...] = ()  # by time
    metrics: tuple[Metric, ...] = ()
    step: int | None = None  # the last of the lowest rank
    steps: int | None = None  # in all
    loads: Mapping[str, Mapping[str, Series]] = field(default_factory=dict)
    """Of a figure, by its title, and of a node or GPU, by its name."""
    logs: tuple[LogTail, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def gpu_count(self) -> int:
        return sum(len(node.gpus) for node in self.plans[-1].nodes) if self.plans else 0

    @property
    def seconds(self) -> float | None:
        """How long it took in all; None while it is on."""
        if self.launched_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.launched_at)


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the leaves of a nested configuration by dotted key, as texts; lists are leaves."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flat_config(value, f"{name}."))
        else:
            flat[name] = value_text(value)
    return flat


def value_text(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {value_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, float) and value == float(f"{value:g}"):
        return f"{value:g}"
    return str(value)


def differing_values(runs: Sequence[RunData]) -> dict[str, tuple[str | None, ...]]:
    """Return the values of each key that differs, in the order of the runs; None: it is not set.

    The arguments of the task come first. A key that is null in one run and not set in another one
    does not differ, and a run whose configuration is unknown differs in nothing.
    """
    flats = [flat_config(run.config) for run in runs]
    known = [flat for flat in flats if flat]
    keys = dict.fromkeys(key for flat in known for key in flat if has_effect(key))
    differing: dict[str, tuple[str | None, ...]] = {}
    for key in sorted(keys, key=lambda k: (not k.startswith(ARGUMENTS), not k.startswith("task."))):
        if len({flat.get(key, NOTHING) for flat in known}) > 1:
            differing[key] = tuple(flat.get(key) for flat in flats)
    return differing


def set_values(run: RunData) -> dict[str, str]:
    """Return the keys that were set to something else than their default, with effect."""
    defaults = flat_config(written_defaults(Spec))
    return {
        key: text
        for key, text in flat_config(run.config).items()
        if text != defaults.get(key, NOTHING) and has_effect(key)
    }


def has_effect(key: str) -> bool:
    """Return whether a run computes something else by this key."""
    return key.partition(".")[0] not in WITHOUT_EFFECT


def code_text(run: RunData) -> str:
    """Return the name of a run's code: the commit, with "+" if files differ, and the release."""
    if not run.plans:
        return ""
    plan = run.plans[-1]
    mark = "+" if plan.commit.endswith("+") else ""
    commit = plan.commit.rstrip("+")[:7]
    return f"{commit}{mark} {plan.release[:7]}".strip()


def gpu_hours(run: RunData) -> float | None:
    """Return the number of GPUs times the hours of all attempts; None while it is on."""
    if run.verdict is None or not run.plans:
        return None
    counts = {plan.attempt: sum(len(node.gpus) for node in plan.nodes) for plan in run.plans}
    seconds = run.verdict.seconds * run.gpu_count
    for past in run.verdict.past_attempts:
        seconds += past.seconds * counts.get(past.attempt, run.gpu_count)
    return seconds / 3600


def best_word(metric: str) -> str:
    """Return which value of a metric is the best one: "least" or "most"."""
    return "least" if "loss" in metric or "perplexity" in metric else "most"
