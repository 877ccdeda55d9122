"""Assumed facts for `dry_run=offline`: taken from the YAML, or assumed and named as such."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.core.errors import NotReady, fold_names
from runner.core.planning.readiness import missing_script
from runner.core.shell import expand_home
from runner.core.spec import Node, Spec, are_local
from runner.core.wire.facts import ASSUMED, PREPARED, Facts, Gpu, Interpreter

ASSUMED_PORT = 29500


def assumed_facts(spec: Spec) -> tuple[Spec, dict[str, Facts], list[str]]:
    """Return the spec and facts for a plan made without contacting hosts, and the assumptions."""
    addressed = spec.nodes if spec.rendezvous.torch_assigns_ranks else spec.nodes[:1]
    is_here = are_local(spec.nodes)
    addressed = () if is_here else addressed
    nodes = tuple(replace(n, addr=n.addr or n.host) if n in addressed else n for n in spec.nodes)
    assumed = [
        f"{nodes[0].python} and {spec.cluster.workdir} are as written here, and torch is there",
        "every rank has one core (OMP_NUM_THREADS)",
    ]
    if spec.cluster.prepare:
        assumed.append("the environment is made; HASH is that of what it depends on")
    if is_here:
        _check_script(spec)
    elif len(nodes) > 1 and spec.rendezvous.torch_assigns_ranks:
        assumed.append("each host is reached at the address given here")
    elif len(nodes) > 1:
        rendezvous = f"the ranks meet at {nodes[0].addr}"
        assumed.append(f"{rendezvous}; each host's interface is found at launch")
    if not spec.cluster.master_port.first and spec.rendezvous.uses_master_store:
        assumed.append(f"port {ASSUMED_PORT}; a launch takes a free one of the master's")
    if spec.container.engine:
        engine = spec.container.engine
        image = spec.container.image
        assumed.append(f"{engine} works, {image} is there, and you are root on the hosts")
        if any(path.startswith("~/") for path in (spec.cluster.workdir, spec.cluster.project)):
            assumed.append(f"before you paste: {engine} mounts no ~/…, only whole paths")
    gpus_unknown = [node.name for node in nodes if node.gpu_count is None and not node.gpu_ids]
    if gpus_unknown:
        assumed.append(f"no GPU on {fold_names(gpus_unknown)} (gpus is auto)")
    facts = {node.name: _node_facts(spec, node) for node in nodes}
    return replace(spec, nodes=nodes), facts, assumed


def _check_script(spec: Spec) -> None:
    """Refuse a program that this machine lacks, as a launch on it would: raise NotReady."""
    script = Path(expand_home(spec.cluster.project)) / spec.task.target
    is_needed = spec.task.kind == "script" and not spec.pushes_code
    if is_needed and not script.is_file() and not (script / "__main__.py").is_file():
        raise NotReady([missing_script(spec.task, spec.nodes[0], spec.cluster.project)])


def _node_facts(spec: Spec, node: Node) -> Facts:
    indices = node.gpu_ids or tuple(range(node.gpu_count or 0))
    folder = f"{spec.cluster.workdir}/prepared/HASH" if spec.cluster.prepare else ""
    python = spec.python_of(node).replace(PREPARED, folder)
    return Facts(
        node=node.name,
        python=Interpreter(executable=python, torch="assumed", torch_cuda="assumed"),
        environment=folder,
        gpus=tuple(Gpu(index) for index in indices),
        gpu_source=ASSUMED,
        reserved_port=spec.cluster.master_port.first or ASSUMED_PORT,
        workdir=spec.cluster.workdir,
        project=spec.cluster.project,
        has_release=True,
    )
