"""Composition of a sweep: the place of each run in it, and the problems of all runs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.core.errors import ConfigError, Problem
from runner.core.model.spec import LaunchRequest, SweepPlace
from runner.core.shell import this_program


@dataclass(frozen=True)
class FailedRun:
    """A run that cannot be composed."""

    name: str  # its number and its overrides
    problems: tuple[Problem, ...]


def as_sweep(results: Sequence[LaunchRequest | FailedRun], sweep_id: str) -> list[LaunchRequest]:
    """Return the runs with their places in the sweep, or raise a ConfigError with every problem."""
    requests = [result for result in results if isinstance(result, LaunchRequest)]
    if len(requests) < len(results):
        raise ConfigError(_merge_problems(results))
    if len({request.run_dir for request in requests}) < len(requests):
        message = "every run of a --multirun needs its own folder"
        raise ConfigError([Problem("run_dir", message, "leave out run_id and run_dir")])
    if len(requests) == 1:
        return requests
    if any(request.spec.detach for request in requests):
        message = "the runs of a --multirun would all be started at once, on the same GPUs"
        hint = f"leave it out, and detach the sweep itself: nohup {this_program()} -m ... &"
        raise ConfigError([Problem("detach", message, hint)])
    common = set.intersection(*(set(request.overrides) for request in requests))
    changes = [tuple(w for w in request.overrides if w not in common) for request in requests]
    return [
        replace(request, sweep=SweepPlace(sweep_id, number, len(requests), changed))
        for number, (request, changed) in enumerate(zip(requests, changes, strict=True), 1)
    ]


def _merge_problems(results: Sequence[LaunchRequest | FailedRun]) -> list[Problem]:
    """Return each problem once; those that not every run has name the first run that has them."""
    runs_of: dict[Problem, list[str]] = {}
    for run in (result for result in results if isinstance(result, FailedRun)):
        for problem in run.problems:
            runs_of.setdefault(problem, []).append(run.name)
    return [
        problem
        if len(names) == len(results)
        else replace(problem, hint=f"{problem.hint}\nin {names[0]}".lstrip())
        for problem, names in runs_of.items()
    ]
