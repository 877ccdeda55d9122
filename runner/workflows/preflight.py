"""What `check` learns of a cluster, and what its checks find in that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from runner.checks.context import Case
from runner.checks.registry import look
from runner.control.code.requirements import of_project
from runner.control.code.snapshot import Snapshot
from runner.control.network_probe import Prober
from runner.control.rpc.connector import launch_request
from runner.core.errors import ConfigError, NotReady
from runner.core.model.finding import Finding
from runner.core.model.launch_request import Composed
from runner.workflows.host_pool import Contact


def examined(composed: Composed, hosts: Contact, skip: Collection[str]) -> dict[str, list[Finding]]:
    """Return what every check finds but those of `skip`, and those that the YAML leaves out.

    Nothing is started or changed.

    Raises:
        Interrupted: By a signal.
    """
    skipped = {*composed.spec.skip_checks, *skip}
    case = _of_this_machine(composed, hosts, skipped)
    facts, silent = hosts.gather_some(
        lambda node: replace(
            launch_request(hosts.spec, node, case.code, case.wants.names),
            run_id="",
            project="",
            script="",
            thorough=True,
        )
    )
    case = replace(case, facts=facts, silent=silent, skews=hosts.skews)
    if case.ready:
        hosts.console.phase("trying the network")
        prober = Prober(hosts.spec, hosts.sessions, hosts.inbox, hosts.console.state)
        pairs, names = "pairs" not in skipped, "names" not in skipped
        probed = prober.run(case.ready_nodes, facts, pairs=pairs, names=names)
        case = replace(case, probed=probed)
    return look(case, skipped)


def _of_this_machine(composed: Composed, hosts: Contact, skipped: Collection[str]) -> Case:
    """Return what is known without any host: what the project names, and the code to push."""
    case = Case(hosts.spec, {})
    if "packages" not in skipped:
        case = replace(case, wants=of_project(case.spec, Path.cwd()))
    if "code" in skipped or not case.spec.deploy.on:
        return case
    try:
        code = Snapshot.take(case.spec, Path.cwd(), composed.run_dir).code
    except (ConfigError, NotReady) as error:
        return replace(case, unpushable=tuple(error.problems))
    return replace(case, code=code)
