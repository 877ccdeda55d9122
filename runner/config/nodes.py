"""Nodes of a cluster: entries, ranges, words about one node, and the selection of those to use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from runner.config.kinds import Problems, read_section, read_value
from runner.config.words import NODES_PREFIX, key_of, put, value_of
from runner.core.errors import suggest
from runner.core.spec import Cluster, Node, Task
from runner.core.wire.text import join_some

MAX_LISTED = 8
"""How many names of nodes a message lists."""


ENTRIES = re.compile(r"(?:\[[^]]*\]|[^],[])+")
"""The parts of a list of nodes such as n[1-2,5],m3."""

THIS_MACHINE = "login"
"""The name of the machine that submits jobs."""


def expand_range(entry: str) -> list[str]:
    """Return the names that `gpu[01-16]` stands for, or raise ValueError."""
    if not set(entry) & set("[],"):
        return [entry]
    # Here, because most clusters have no range and all would pay for the import.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # noqa: PLC0415

    try:
        return list(NodeSet(entry, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise ValueError(str(error)) from error


def listed(names: Iterable[str]) -> str:
    return join_some([*names], MAX_LISTED, "others")


def _expand(problems: Problems, where: str, entry: str) -> list[str]:
    try:
        names = expand_range(entry)
    except ValueError as error:
        message = f"{entry!r} is no range of names: {error}"
        problems.report(where, message, "such as gpu[01-16]")
        return []
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
            message = f"{name!r} is no node name; use letters, digits, '.', '_' and '-'"
            hint = "the name becomes a folder; `host:` takes any address"
            problems.report(where, message, hint)
            return []
    return names


def set_on_nodes(problems: Problems, tree: dict[str, Any], word: str) -> None:
    """Put a word about a node into a composed configuration.

    A word about a range holds for each of its nodes that has an entry of its own, too.
    """
    entries = tree["cluster"].get("nodes") or {}
    if not isinstance(entries, dict):
        message = f"must be a mapping of names to settings, so that {word} can change one"
        problems.report("cluster.nodes", message, "set it in the YAML")
        return
    path = key_of(word).removeprefix(NODES_PREFIX)
    members = {entry: _expand(Problems(), "", entry) for entry in entries}
    names = [name for each in members.values() for name in each]
    parts = path.split(".")
    heads = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    name = next((head for head in heads if head in (*members, *names)), parts[0])
    if name not in (*members, *names) and not word.startswith("+"):
        hint = f"+{NODES_PREFIX}{name}.host=ADDRESS adds one"
        if near := suggest(name, names, NODES_PREFIX):
            hint = f"{near}\n{hint}"
        message = f"there is no node {name}; the nodes are {listed(dict.fromkeys(names))}"
        problems.report(f"{NODES_PREFIX}{path}", message, hint)
        return
    below = path[len(name) + 1 :].split(".") if path != name else []
    for entry in {name, *members.keys() & {*members.get(name, [])}}:
        put(tree, ["cluster", "nodes", entry, *below], value_of(word))


def read_nodes(problems: Problems, cluster: Cluster) -> dict[str, Node]:
    """Return all nodes of the cluster in the order of the YAML.

    An entry of one node wins over ranges; of several ranges, the last one.
    """
    entries = cluster.nodes or {}
    if not isinstance(entries, Mapping):
        message = f"must be a mapping of names to settings, not {entries!r}"
        hint = "such as nodes: {gpu1: {}, gpu2: {}}; a number is for scheduler: slurm"
        problems.report("cluster.nodes", message, hint)
        return {}
    if not entries:
        example = "such as nodes: {gpu1: {host: 192.168.1.109}}"
        problems.report("cluster.nodes", f"cluster {cluster.name} names no node", example)
    settings_by_entry: list[tuple[list[str], dict[str, Any]]] = []
    for entry, body in entries.items():
        where = f"{NODES_PREFIX}{entry}"
        read = _read_node(problems, where, body)
        settings_by_entry.append((_expand(problems, where, entry), read))
    order = dict.fromkeys(name for names, _ in settings_by_entry for name in names)
    settings: dict[str, dict[str, Any]] = {name: {} for name in order}
    for names, read in sorted(settings_by_entry, key=lambda each: len(each[0]) == 1):
        for name in names:
            env = settings[name].get("env", {}) | read.get("env", {})
            settings[name] |= read | {"env": env}
    nodes = {}
    for name, own in settings.items():
        usual = {
            "gpus": cluster.gpus_per_node,
            "nproc_per_node": cluster.nproc_per_node,
            "python": cluster.python,
            "transport": cluster.transport,
        }
        host = own.pop("host", None) or name
        nodes[name] = Node(name=name, host=host, **(usual | own))
    return nodes


def _read_node(problems: Problems, where: str, body: object) -> dict[str, Any]:
    if body is None:
        return {}
    if not isinstance(body, Mapping):
        message = f"must be a mapping, not {body!r}"
        problems.report(where, message, f"such as {{host: {body}}}")
        return {}
    set_here = {key: value for key, value in body.items() if key != "transport" or value}
    return read_section(problems, where, Node, set_here)


def select_nodes(
    problems: Problems, cluster: Cluster, task: Task, nodes: Mapping[str, Node]
) -> tuple[tuple[Node, ...], tuple[Node, ...], int | None]:
    """Return the nodes to use in rank order, the spare ones, and the fewest a run may have.

    The master is the first, then the order of the YAML holds. The fewest is None for all of them.
    """
    names = list(nodes)
    for key, words in {"cluster.only": cluster.only, "cluster.exclude": cluster.exclude}.items():
        chosen = {name for word in words for name in _expand(problems, key, word)}
        missing = sorted(chosen - nodes.keys())
        if nodes and missing:
            message = f"there is no node {listed(missing)}; the nodes are {listed(nodes)}"
            problems.report(key, message, suggest(missing[0], nodes))
        if chosen & nodes.keys():
            names = [name for name in names if (name in chosen) != (key == "cluster.exclude")]
    if nodes and not names:
        problems.report("cluster.nodes", "no node is left after cluster.only or cluster.exclude")
    master = cluster.master
    if master and names and master not in names:
        message = f"{master} is not among the nodes to use: {listed(names)}"
        hint = f"set cluster.master={names[0]}, or null for the first"
        problems.report("cluster.master", message, suggest(master, names) or hint)
    names.sort(key=lambda name: name != (master or name))
    min_nodes, count = task.nnodes or (None, None)
    if count is not None and names and count > len(names):
        hint = "choose another cluster (cluster=NAME), or add nodes to its file"
        if min_nodes:
            hint = f"a range may go up to {len(names)}"
        message = f"{count} nodes are wanted, but there are {len(names)}: {listed(names)}"
        problems.report("task.nnodes", message, hint)
    selected = [nodes[name] for name in names]
    node_of_login: dict[object, str] = {}
    for node in selected:
        login = (node.host, node.user or cluster.ssh.user, node.port or cluster.ssh.port)
        if node.transport != "local" and node_of_login.setdefault(login, node.name) != node.name:
            message = f"{node.name} and {node_of_login[login]} are the same machine, {node.host}"
            hint = "one node takes nproc_per_node ranks"
            problems.report(f"{NODES_PREFIX}{node.name}", message, hint)
    used_count = len(names) if count is None else count
    return tuple(selected[:used_count]), tuple(selected[used_count:]), min_nodes


def read_slurm(
    problems: Problems, cluster: Cluster, task: Task, environ: Mapping[str, str], *, spares: bool
) -> tuple[Cluster, Task, dict[str, Node]]:
    """Return the nodes of the job that this process is in; outside of one, this machine.

    With them, what the job asks for, and the task by the nodes that it got. `task.nnodes` wins over
    `cluster.nodes`, of which the rest are asked for, too, if `spares` are wanted.
    """
    ignored = {"cluster.only": cluster.only, "cluster.master": cluster.master}
    for key in filter(ignored.get, ignored):
        hint = "the first node of the job has rank 0; cluster.slurm.extra may have --nodelist=NAMES"
        problems.report(key, "Slurm chooses the nodes", hint)
    least: int | None = None
    most: int = 1
    if isinstance(cluster.nodes, Mapping) and cluster.nodes:
        message = "with slurm this is how many nodes a job gets, not which"
        problems.report("cluster.nodes", message, "such as nodes: 4")
    elif cluster.nodes not in (None, {}):
        read = read_value(problems, "cluster.nodes", "nnodes", cluster.nodes)
        least, most = read or (None, 1)
    if task.nnodes is not None:
        least, used = task.nnodes
        keeps_spares = spares and least is None
        most = max(most, used or 1) if keeps_spares else used or 1
    job_id = environ.get("SLURM_JOB_ID", "")
    names = [THIS_MACHINE]
    if job_id:
        entries = ENTRIES.findall(environ.get("SLURM_JOB_NODELIST", ""))  # in Slurm's order
        names = [name for entry in entries for name in expand_range(entry)][:most]
        if least is not None:
            task = replace(task, nnodes=(least, min(most, len(names))))
    usual = Node(
        name="",
        transport="srun" if job_id else "local",
        gpus=cluster.gpus_per_node,
        nproc_per_node=cluster.nproc_per_node,
        python=cluster.python,
    )
    job = replace(
        cluster.slurm,
        nodes=f"{most}" if least in (None, most) else f"{least}-{most}",
        nnodes=most,
        job_id=job_id,
    )
    nodes = {name: replace(usual, name=name, host=name) for name in names}
    return replace(cluster, slurm=job, exclude=() if job_id else cluster.exclude), task, nodes
