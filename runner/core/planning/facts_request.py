"""Facts request of a launch: what the plan needs to know about one node."""

from __future__ import annotations

import posixpath
from typing import Tuple

from runner.core.model.etcd import CLIENT_PACKAGE
from runner.core.model.facts import FactsRequest
from runner.core.model.packages import NCCL_PACKAGES
from runner.core.model.release import CodeRef
from runner.core.model.spec import Node, Spec
from runner.core.planning.etcd import uses_plain_http


def facts_request(
    spec: Spec, node: Node, code: CodeRef, packages: Tuple[str, ...] = ()
) -> FactsRequest:
    """Return what a launch asks a node, including which of `packages` it has."""
    task = spec.task
    script = task.target if task.kind == "script" else ""
    if code.release and (code.script or not posixpath.isabs(script)):
        script = ""  # it comes with the release
    is_master = node is spec.master
    reserves_port = spec.rendezvous.reserves_port(node.name, spec.master.name)
    is_voter = spec.relaunch.max > 0
    has_peers = len(spec.nodes) + len(spec.spares) > 1
    return FactsRequest(
        node=node.name,
        run_id=spec.run_id,
        setup=spec.setup,
        python=spec.python,
        project="" if task.shipped_file or code.release else spec.project,
        script=script,
        workdir=spec.workdir,
        tasks_hash=code.tasks_hash,
        release=code.release,
        reserve_port=reserves_port,
        reserve_hub_port=is_master and has_peers,
        reserve_vote_port=is_voter and has_peers,
        port_first=spec.master_port.first if is_master or reserves_port or is_voter else 0,
        port_last=spec.master_port.last if is_master or reserves_port or is_voter else 0,
        python_path=spec.env_of(node).get("PYTHONPATH", ""),
        packages=(
            *NCCL_PACKAGES,
            *(CLIENT_PACKAGE if spec.rendezvous.uses_etcd else ()),
            *packages,
        ),
        find_etcd=node.name == spec.rendezvous.serve,
        etcd_endpoint=spec.rendezvous.endpoint if uses_plain_http(spec) else "",
    )
