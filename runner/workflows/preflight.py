"""Preflight of a cluster: what the verb `check` collects, and what the checks find in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from runner.checks.base import CheckContext, evaluate_checks
from runner.control.code.requirements import project_requirements
from runner.control.code.snapshot import Snapshot
from runner.control.network_probe import NetworkProber
from runner.core.errors import ConfigError, NotReady
from runner.core.model.facts import FactsRequest
from runner.core.model.finding import Finding
from runner.core.model.launch_request import LaunchRequest
from runner.core.model.spec import Node, Spec
from runner.core.planning.readiness import facts_request
from runner.workflows.host_pool import HostPool


def run_preflight(
    composed: LaunchRequest, pool: HostPool, skip: Collection[str]
) -> dict[str, list[Finding]]:
    """Return the findings of every check that is not skipped; nothing is started or changed."""
    skipped = {*composed.spec.skip_checks, *skip}
    context = _local_context(composed, pool, skipped)
    facts, unreachable = pool.collect_available_facts(
        lambda node: _facts_request(pool.spec, node, context)
    )
    context = replace(
        context, facts=facts, unreachable=unreachable, clock_offsets=pool.clock_offsets
    )
    if context.ready:
        pool.console.phase("trying the network")
        prober = NetworkProber(pool.spec, pool.broadcast)
        pairs, names = "pairs" not in skipped, "names" not in skipped
        nodes = tuple(node for node, _ in context.ready)
        probe = prober.run(nodes, facts, pairs=pairs, names=names)
        context = replace(context, network_probe=probe)
    return evaluate_checks(context, skipped)


def _facts_request(spec: Spec, node: Node, context: CheckContext) -> FactsRequest:
    request = facts_request(spec, node, context.code, context.requirements.names)
    request = replace(request, run_id="", thorough=True)
    return replace(request, project="", script="") if spec.pushes_code else request


def _local_context(
    composed: LaunchRequest, pool: HostPool, skipped: Collection[str]
) -> CheckContext:
    """Return what is known without any host: the project's requirements, and the code to push."""
    context = CheckContext(pool.spec, {})
    if "packages" not in skipped:
        context = replace(context, requirements=project_requirements(context.spec, Path.cwd()))
    if "code" in skipped or not context.spec.deploy.enabled:
        return context
    try:
        code = Snapshot.take(context.spec, Path.cwd(), composed.run_dir).code
    except (ConfigError, NotReady) as error:
        return replace(context, push_problems=tuple(error.problems))
    return replace(context, code=code)
