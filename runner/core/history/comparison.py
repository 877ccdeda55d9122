"""Comparison of runs: which keys differ, and the texts of what they ran."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from runner.core.history.run_data import RunData
from runner.core.spec import Spec, written_defaults

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


def flat_config(config: Mapping[str, Any], prefix: str = "") -> Dict[str, str]:
    """Return the leaves of a nested configuration by dotted key, as texts; lists are leaves."""
    flat: Dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flat_config(value, f"{name}."))
        else:
            flat[name] = value_text(value)
    return flat


def value_text(value: Any) -> str:
    """Return a value of the configuration as it is written in YAML."""
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


def differing_values(runs: Sequence[RunData]) -> Dict[str, Tuple[Optional[str], ...]]:
    """Return the values of each key that differs, in the order of the runs; None: it is not set.

    The arguments of the task come first. A key that is null in one run and not set in another one
    does not differ, and a run whose configuration is unknown differs in nothing.
    """
    flats = [flat_config(run.config) for run in runs]
    known = [flat for flat in flats if flat]
    keys = dict.fromkeys(key for flat in known for key in flat if has_effect(key))
    differing: Dict[str, Tuple[Optional[str], ...]] = {}
    for key in sorted(keys, key=lambda k: (not k.startswith(ARGUMENTS), not k.startswith("task."))):
        if len({flat.get(key, NOTHING) for flat in known}) > 1:
            differing[key] = tuple(flat.get(key) for flat in flats)
    return differing


def set_values(run: RunData, defaults: Mapping[str, str]) -> Dict[str, str]:
    """Return the keys that were set to something else than their default, with effect."""
    return {
        key: text
        for key, text in flat_config(run.config).items()
        if text != defaults.get(key, NOTHING) and has_effect(key)
    }


def default_values() -> Dict[str, str]:
    """Return the default of each dotted key as a text."""
    return flat_config(written_defaults(Spec))


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


def gpu_hours(run: RunData) -> Optional[float]:
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
