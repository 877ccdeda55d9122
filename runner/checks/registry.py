"""Registry of checks by name, in the order in which their findings appear."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from runner.checks.clock import clock
from runner.checks.code import code
from runner.checks.context import Check, CheckContext
from runner.checks.driver import driver
from runner.checks.gpus import gpus
from runner.checks.health import health
from runner.checks.limits import limits
from runner.checks.login import reach
from runner.checks.logout import logout
from runner.checks.name_lookup import names
from runner.checks.network import network
from runner.checks.packages import packages
from runner.checks.python import python
from runner.checks.reachability import pairs
from runner.checks.rendezvous import rendezvous
from runner.checks.setup import setup
from runner.checks.storage import storage
from runner.checks.system import system
from runner.checks.torch import torch
from runner.core.model.finding import Finding

CHECKS: dict[str, Check] = {
    "reach": reach,
    "setup": setup,
    "python": python,
    "torch": torch,
    "packages": packages,
    "rendezvous": rendezvous,
    "gpus": gpus,
    "driver": driver,
    "health": health,
    "network": network,
    "pairs": pairs,
    "names": names,
    "code": code,
    "storage": storage,
    "limits": limits,
    "system": system,
    "clock": clock,
    "logout": logout,
}


LAUNCH_CHECKS = ("python", "torch", "packages", "rendezvous", "gpus", "driver", "health")
"""The checks that every launch evaluates, warnings included; `readiness` has all its refusals.

A launch does not ask for the health of GPUs, only whether each answers: `FactsRequest.thorough`.
"""


def evaluate_checks(
    context: CheckContext, skip: Collection[str] = (), only: Iterable[str] = tuple(CHECKS)
) -> dict[str, list[Finding]]:
    """Return the findings of these checks, except the skipped ones."""
    return {name: list(CHECKS[name](context)) for name in only if name not in skip}
