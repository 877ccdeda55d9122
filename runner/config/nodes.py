"""Nodes of a cluster: entries, ranges, words about one node, and the selection of those to use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.config.kinds import Problems, join_or, read_section, read_value, suggest, unknown_key
from runner.config.words import NODES_PREFIX, NodeWord
from runner.core.errors import Problem
from runner.core.spec import MASTER, Cluster, Node, Spec, Task, keys_of
from runner.core.text import join_some

OWN_OPTIONS = re.compile(
    r"--(array|nodes|ntasks(-per-node)?|output|error|open-mode|job-name|comment|chdir|export|wrap"
    r"|wait|parsable|hold|signal|(no-)?requeue)|-[aNnoeJDWH]"
)
"""Options of sbatch that a batch script has anyway, or that no run can have."""

CORES = re.compile(r"(\d+)(?:\(x(\d+)\))?")
"""The cores of nodes as Slurm writes them: 8(x2),4 is 8, 8 and 4."""

THIS_MACHINE = "login"
"""The name of the machine that submits jobs."""

MAX_LISTED = 8
"""How many names of nodes a message lists."""


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


def _listed(names: Iterable[str]) -> str:
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


def apply_words(config: DictConfig, words: Sequence[NodeWord]) -> list[tuple[str, str]]:
    """Put words about single nodes into a composed configuration.

    Returns:
        The node or range and the key of each, which win over every entry.

    Raises:
        ConfigError: There is no such node; with every one that is misspelt.
    """
    problems = Problems()
    applied: list[tuple[str, str]] = []
    for word in words:
        entries = config.cluster.get("nodes")
        if not isinstance(entries, DictConfig):
            message = "cluster.nodes is no mapping of nodes"
            problems.report(word.word, message, "set it in the YAML")
            continue
        known = list(map(str, entries))
        known += [name for entry in known for name in _expand(Problems(), "", entry)]
        name, key = _split_path(word.path, known)
        if name not in known and not word.is_new:
            problems.append(_no_such_node(name, word.path, known))
        elif word.is_removed:
            _remove(problems, word, entries, name, key)
        else:
            body: Any = OmegaConf.to_container(entries, resolve=False)
            value = word.value
            for part in reversed(key.split(".") if key else []):
                value = {part: value}
            merged = OmegaConf.merge(body.get(name) or {}, value or {})
            entries[name] = merged
            applied.append((name, key))
    problems.raise_any()
    return applied


def _split_path(path: str, known: Sequence[str]) -> tuple[str, str]:
    """Return the name of a node, which may have dots, and the key below it."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        if name in known:
            return name, ".".join(parts[count:])
    return parts[0], ".".join(parts[1:])


def _no_such_node(name: str, path: str, known: Sequence[str]) -> Problem:
    names = [each for each in dict.fromkeys(known) if "[" not in each]
    where = f"{NODES_PREFIX}{path}"
    hint = f"+{NODES_PREFIX}{name}.host=ADDRESS adds one"
    if near := suggest(name, names, NODES_PREFIX):
        hint = f"{near}\n{hint}"
    return Problem(where, f"there is no node {name}; the nodes are {_listed(names)}", hint)


def _remove(problems: Problems, word: NodeWord, entries: DictConfig, name: str, key: str) -> None:
    if not key and name in entries:
        del entries[name]
    elif key and name in entries and OmegaConf.is_dict(entries[name]) and key in entries[name]:
        del entries[name][key]
    else:
        hint = f"cluster.exclude=[{name}] leaves a node out" if not key else "leave the word out"
        problems.report(word.word, "there is no such entry in the YAML", hint)


def read_nodes(
    problems: Problems,
    cluster: Cluster,
    own_words: Sequence[tuple[str, str]],
) -> dict[str, Node]:
    """Return all nodes of the cluster in the order of the YAML."""
    entries = cluster.nodes or {}
    if not isinstance(entries, Mapping):
        message = f"must be a mapping of names to settings, not {entries!r}"
        problems.report("cluster.nodes", message, "a number is for scheduler: slurm")
        return {}
    if not entries:
        example = "such as nodes: {gpu1: {host: 192.168.1.109}}"
        problems.report("cluster.nodes", f"cluster {cluster.name} names no node", example)
    settings: dict[str, dict[str, Any]] = {}
    for entry, body in entries.items():
        fields = _read_node(problems, f"{NODES_PREFIX}{entry}", body)
        for name in _expand(problems, f"{NODES_PREFIX}{entry}", entry):
            _merge(settings.setdefault(name, {}), fields)
    for entry, key in own_words:
        read = _read_node(Problems(), entry, entries.get(entry))
        fields = {
            name: value for name, value in read.items() if key.partition(".")[0] in ("", name)
        }
        for name in _expand(Problems(), "", entry):
            if name in settings:
                _merge(settings[name], fields)
    usual = {
        "gpus": cluster.gpus_per_node,
        "nproc_per_node": cluster.nproc_per_node,
        "python": cluster.python,
        "transport": cluster.transport,
    }
    nodes = {}
    for name, fields in settings.items():
        host = fields.pop("host", None) or name
        nodes[name] = Node(name=name, host=host, **{**usual, **fields})
    return nodes


def _read_node(problems: Problems, where: str, body: object) -> dict[str, Any]:
    """Return the fields of `Node` that one entry of `cluster.nodes` sets."""
    if body is None:
        return {}
    if not isinstance(body, Mapping):
        message = f"must be a mapping, not {body!r}"
        problems.report(where, message, f"such as {{host: {body}}}")
        return {}
    legal = list(keys_of(Node))
    for key in body:
        if key not in legal:
            problems.append(unknown_key(where, key, legal))
    set_here = {key: value for key, value in body.items() if key != "transport" or value}
    return read_section(problems, where, Node, set_here)


def _merge(target: dict[str, Any], later: Mapping[str, Any]) -> None:
    env = {**target.get("env", {}), **later.get("env", {})}
    target.update(later)
    target["env"] = env


def select_nodes(
    problems: Problems, cluster: Cluster, task: Task, nodes: Mapping[str, Node]
) -> tuple[tuple[Node, ...], tuple[Node, ...], int | None]:
    """Return the nodes to use in rank order, the spare ones, and the fewest a run may have.

    The master is the first, then the order of the YAML holds. The fewest is None for all of them.
    """
    names = list(nodes)
    filters = {
        "cluster.only": cluster.only,
        "cluster.exclude": cluster.exclude,
        "task.nodes": task.nodes,
    }
    for key, listed in filters.items():
        if chosen := _named(problems, key, listed, nodes):
            names = [name for name in names if (name in chosen) != (key == "cluster.exclude")]
    if nodes and not names:
        problems.report("cluster.nodes", f"no node is left after {join_or(list(filters))}")
    master = cluster.master
    if nodes and master is not None and master not in nodes:
        message = f"there is no node {master}; the nodes are {_listed(nodes)}"
        problems.report("cluster.master", message, suggest(master, nodes))
    elif master is not None and names and master not in names:
        message = f"{master} is not among the nodes to use: {_listed(names)}"
        hint = f"set cluster.master={names[0]}, or null for the first"
        problems.report("cluster.master", message, hint)
    elif master is not None:
        names.sort(key=lambda name: name != master)
    min_nodes, count = task.nnodes or (None, None)
    if count is not None and names and count > len(names):
        hint = "choose another cluster (cluster=NAME), or add nodes to its file"
        if min_nodes:
            hint = f"a range may go up to {len(names)}"
        message = f"{count} nodes are wanted, but there are {len(names)}: {_listed(names)}"
        problems.report("task.nnodes", message, hint)
    selected = [nodes[name] for name in names]
    _check_distinct(problems, selected, cluster)
    used_count = len(names) if count is None else count
    return tuple(selected[:used_count]), tuple(selected[used_count:]), min_nodes


def _named(
    problems: Problems, where: str, words: Sequence[str], nodes: Mapping[str, Node]
) -> set[str]:
    """Return the nodes that a list of names and ranges names."""
    names = set()
    for word in words:
        for name in _expand(problems, where, word):
            if name in nodes:
                names.add(name)
            elif nodes:
                message = f"there is no node {name}; the nodes are {_listed(nodes)}"
                problems.report(where, message, suggest(name, nodes))
    return names


def _check_distinct(problems: Problems, nodes: Sequence[Node], cluster: Cluster) -> None:
    node_of_login: dict[object, str] = {}
    for node in nodes:
        login = (node.host, node.user or cluster.ssh.user, node.port or cluster.ssh.port)
        if node.transport == "ssh" and node_of_login.setdefault(login, node.name) != node.name:
            message = f"{node.name} and {node_of_login[login]} are the same machine, {node.host}"
            hint = "one node takes nproc_per_node ranks"
            problems.report(f"{NODES_PREFIX}{node.name}", message, hint)


def check_decides(problems: Problems, spec: Spec) -> None:
    """Report a node that cannot decide the end of the run."""
    where = "task.decides"
    decides = spec.task.decides
    if not decides:
        return
    if not spec.task.is_plain:
        message = f"under {spec.task.entry} the ranks of all nodes end together"
        problems.report(where, message, "set task.entry=plain, or leave it out")
    if spec.slurm and decides != MASTER:
        problems.report(where, "the nodes of a job have no names yet", f"choose {MASTER}")
    names = [node.name for node in spec.nodes]
    if names and not spec.slurm and spec.deciding_node not in names:
        message = f"{decides} is no node of this run; choose {MASTER} or one of {_listed(names)}"
        problems.report(where, message, suggest(decides, [MASTER, *names]))


def read_slurm(
    problems: Problems, cluster: Cluster, task: Task, environ: Mapping[str, str], *, spares: bool
) -> tuple[Cluster, Task, dict[str, Node]]:
    """Return the nodes of the job that this process is in; outside of one, this machine.

    With them, what the job asks for, and the task by the nodes that it got. With `spares`,
    nodes beyond `task.nnodes` are asked for, too.
    """
    refused = {
        "cluster.only": cluster.only,
        "task.nodes": task.nodes,
        "cluster.master": cluster.master,
    }
    for key, value in refused.items():
        if value:
            hint = "the first node of the job has rank 0"
            problems.report(key, "Slurm chooses the nodes", hint)
    for word in cluster.slurm.extra:
        name = word.partition("=")[0]
        if OWN_OPTIONS.fullmatch(name):
            hint = "keys of cluster and cluster.slurm set what can be set; -m makes a sweep"
            problems.report("cluster.slurm.extra", f"{name} is the runner's own part", hint)
    if isinstance(cluster.nodes, Mapping) and cluster.nodes:
        message = "with slurm this is how many nodes a job gets, not which"
        problems.report("cluster.nodes", message, "such as nodes: 4")
        cluster = replace(cluster, nodes=None)
    asked = "1" if cluster.nodes in (None, {}) else cluster.nodes
    size = read_value(problems, "cluster.nodes", "nnodes", asked) or (None, 1)
    if task.nnodes is not None and not (spares and (size[1] or 0) > (task.nnodes[1] or 0)):
        size = task.nnodes
    least, most = size
    job_id = environ.get("SLURM_JOB_ID", "")
    names = [THIS_MACHINE]
    cores: list[int] = []
    if job_id:
        names = expand_range(environ.get("SLURM_JOB_NODELIST", ""))[:most]
        for count, times in CORES.findall(environ.get("SLURM_JOB_CPUS_PER_NODE", "")):
            cores += [int(count)] * int(times or 1)
        if task.nnodes is None and least is not None:
            task = replace(task, nnodes=(least, len(names)))
    usual = Node(
        name="",
        transport="srun" if job_id else "local",
        gpus=cluster.gpus_per_node,
        nproc_per_node=cluster.nproc_per_node,
        python=cluster.python,
    )
    job = replace(
        cluster.slurm,
        nodes=f"{least}-{most}" if least is not None and least != most else f"{most}",
        nnodes=most or 1,
        job_id=job_id,
        cores=dict(zip(names, cores, strict=False)),
    )
    nodes = {name: replace(usual, name=name, host=name) for name in names}
    return replace(cluster, slurm=job, exclude=() if job_id else cluster.exclude), task, nodes


def check_scheduler(problems: Problems, spec: Spec) -> None:
    """Report what only Slurm has."""
    if spec.slurm is None and spec.task.entry == "srun":
        hint = "choose task.entry=torchrun or plain, or a cluster with scheduler: slurm"
        problems.report("task.entry", "srun is for clusters that Slurm schedules", hint)
