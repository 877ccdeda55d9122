"""Comparison of runs: which keys differ, and the texts of what they ran."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from runner.core.history.run_data import RunData, flat_config
from runner.core.spec import Spec, written_defaults

ARGUMENTS = "task.args"
NOTHING = "null"

WITHOUT_EFFECT = (
    *("run_id", "run_dir", "rerun", "dry_run", "ui", "detach", "console_ranks", "skip_checks"),
    *("pull_outputs", "notify", "deploy", "debug", "sample_s"),
)
"""Keys, or what their keys begin with, by which no run computes anything else."""


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


def set_values(run: RunData, defaults: Mapping[str, str]) -> Dict[str, str]:
    """Return the keys that were set to something else than their default, with effect."""
    flat = {key: value_text(value) for key, value in flat_config(run.config).items()}
    return {
        key: text
        for key, text in flat.items()
        if text != defaults.get(key, NOTHING) and not without_effect(key)
    }


def default_values() -> Dict[str, str]:
    """Return the default of each dotted key as a text."""
    return {key: value_text(value) for key, value in flat_config(written_defaults(Spec)).items()}


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


def best_word(metric: str) -> str:
    """Return which value of a metric is the best one: "least" or "most"."""
    return "least" if "loss" in metric or "perplexity" in metric else "most"
