"""Nodes of a cluster: entries, ranges, overrides, and the selection of those to use."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runner.config.schema.cluster import NodeConfig
from runner.config.validation import SpecInputs, Validator, join_or, suggest, unknown_key
from runner.core.model.spec import MASTER, Node, Spec

NODE_KEYS = tuple(option.name for option in dataclasses.fields(NodeConfig))
SEXAGESIMAL_BASE = 60


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


def _fold_names(names: Sequence[str]) -> str:
    """Return names as text, many of them as ranges."""
    if len(names) <= 8:  # noqa: PLR2004 (more than fit one line of a message)
        return ", ".join(names)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415

    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def _expand_entry(validator: Validator, where: str, entry: str) -> list[str]:
    try:
        names = expand_range(entry)
    except ValueError as error:
        validator.add(where, f"{entry!r} is no range of names: {error}", "such as gpu[01-16]")
        return []
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
            message = f"{name!r} is no node name; use letters, digits, '.', '_' and '-'"
            validator.add(where, message, "the name becomes a folder; `host:` takes any address")
            return []
    return names


def read_nodes(
    validator: Validator, inputs: SpecInputs, cluster: Mapping[str, Any]
) -> dict[str, Node]:
    """Return all nodes of the cluster in the order of the YAML; `cluster` has its defaults."""
    entries = cluster["nodes"] or {}
    if not isinstance(entries, Mapping):
        message = f"must be a mapping of names to settings, not {entries!r}"
        validator.add("cluster.nodes", message, "a number is for scheduler: slurm")
        return {}
    if not entries:
        example = "such as nodes: {gpu1: {host: 192.168.1.109}}"
        validator.add("cluster.nodes", f"cluster {inputs.cluster} names no node", example)
    settings: dict[str, dict[str, Any]] = {}
    for entry, body in _declared_entries(validator, inputs, entries):
        fields = _read_node(validator, f"cluster.nodes.{entry}", body)
        for name in _expand_entry(validator, f"cluster.nodes.{entry}", entry):
            _merge(settings.setdefault(name, {}), fields)
    for name, body in _override_entries(entries, inputs.node_overrides):
        if name in settings:
            _merge(settings[name], _read_node(Validator([]), name, body))
    defaults = {"gpu_count": cluster["gpus_per_node"], "nproc": cluster["nproc_per_node"]}
    defaults["transport"] = cluster["transport"]
    return {
        name: Node(name=name, **{**defaults, **fields, "host": fields.get("host") or name})
        for name, fields in settings.items()
    }


def _declared_entries(
    validator: Validator, inputs: SpecInputs, entries: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the entries of the YAML; report those that only a misspelt override made."""
    if inputs.known_entries is None:
        yield from entries.items()
        return
    members = (_expand_entry(Validator([]), "", entry) for entry in inputs.known_entries)
    names = list(dict.fromkeys(name for group in members for name in group))
    for entry, body in entries.items():
        if entry in names or entry in inputs.known_entries:
            yield entry, body
            continue
        message = f"there is no node {entry}; the nodes are {_fold_names(names)}"
        hint = f"+cluster.nodes.{entry}.host=ADDRESS adds one"
        if near := suggest(entry, names, "cluster.nodes."):
            hint = f"{near}\n{hint}"
        if any(name.startswith(f"{entry}.") for name in names):
            hint = f"a dot separates keys: call it {entry}, with `host: {entry}.…`"
        validator.add(f"cluster.nodes.{entry}", message, hint)


def _override_entries(
    entries: Mapping[str, Any], paths: Iterable[tuple[str, ...]]
) -> Iterator[tuple[str, Any]]:
    """Yield the overrides of nodes, which win over every entry."""
    for name, *keys in paths:
        value: Any = entries.get(name)
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        for key in reversed(keys):
            value = {key: value}
        yield name, value


def _read_node(validator: Validator, where: str, body: object) -> dict[str, Any]:
    """Return the fields of `Node` that one entry of `cluster.nodes` sets."""
    if body is None:
        return {}
    if not isinstance(body, Mapping):
        validator.add(where, f"must be a mapping, not {body!r}", f"such as {{host: {body}}}")
        return {}
    for key in body:
        if key not in NODE_KEYS:
            validator.problems.append(unknown_key(where, key, NODE_KEYS))
    fields = validator.section(where, body, NodeConfig)
    if "gpus" in fields:
        fields["gpu_count"], fields["gpu_ids"] = fields.pop("gpus")
    if "nproc_per_node" in fields:
        fields["nproc"] = fields.pop("nproc_per_node")
    if not fields.get("transport"):
        fields.pop("transport", None)
    return fields


def _merge(target: dict[str, Any], later: Mapping[str, Any]) -> None:
    env = {**target.get("env", {}), **later.get("env", {})}
    target.update(later)
    target["env"] = env


def select_nodes(
    validator: Validator, inputs: SpecInputs, nodes: Mapping[str, Node]
) -> tuple[tuple[Node, ...], tuple[Node, ...], int | None]:
    """Return the nodes to use in rank order, the spare ones, and the fewest a run may have.

    The master is the first, then the order of the YAML holds. The fewest is None for all of them.
    """
    cluster, task = inputs.values["cluster"], inputs.values["task"]
    filters = {"cluster.only": cluster["only"], "cluster.exclude": cluster["exclude"]}
    filters["task.nodes"] = task["nodes"]
    names = list(nodes)
    for key, value in filters.items():
        if listed := _expand_names(validator, key, value, nodes):
            names = [name for name in names if (name in listed) != (key == "cluster.exclude")]
    if nodes and not names:
        validator.add("cluster.nodes", f"no node is left after {join_or(list(filters))}")
    master = cluster["master"]
    if nodes and master is not None and master not in nodes:
        message = f"there is no node {master}; the nodes are {_fold_names(list(nodes))}"
        validator.add("cluster.master", message, suggest(str(master), nodes))
    elif master is not None and names and master not in names:
        message = f"{master} is not among the nodes to use: {_fold_names(names)}"
        hint = f"set cluster.master={names[0]}, or null for the first"
        validator.add("cluster.master", message, hint)
    elif master is not None:
        names.sort(key=lambda name: name != master)
    min_nodes, count = validator.nnodes("task.nnodes", task["nnodes"])
    if count is not None and names and count > len(names):
        hint = f"a range may go up to {len(names)}" if min_nodes else ""
        if count >= SEXAGESIMAL_BASE and task["nnodes"] == count:  # YAML 1.1 reads 2:4 in base 60
            lowest, highest = divmod(count, SEXAGESIMAL_BASE)
            hint = f"if {lowest}:{highest} is meant, put it in quotes"
        elif not hint:
            hint = "choose another cluster (cluster=NAME), or add nodes to its file"
        message = f"{count} nodes are wanted, but there are {len(names)}: {_fold_names(names)}"
        validator.add("task.nnodes", message, hint)
    selected = [nodes[name] for name in names]
    _check_distinct(validator, selected, cluster["ssh"])
    used_count = len(names) if count is None else count
    return tuple(selected[:used_count]), tuple(selected[used_count:]), min_nodes


def check_decides(validator: Validator, spec: Spec) -> None:
    """Report a node that cannot decide the end of the run."""
    where = "task.decides"
    decides = spec.task.decides
    if decides and not spec.task.is_plain:
        message = f"under {spec.task.entry} the ranks of all nodes end together"
        validator.add(where, message, "set task.entry=plain, or leave it out")
    if decides and spec.slurm and decides != MASTER:
        validator.add(where, "the nodes of a job have no names yet", f"choose {MASTER}")
    names = [node.name for node in spec.nodes]
    if names and not spec.slurm and spec.deciding_node not in ("", *names):
        message = (
            f"{decides} is no node of this run; choose {MASTER} or one of {_fold_names(names)}"
        )
        validator.add(where, message, suggest(decides, [MASTER, *names]))


def _expand_names(
    validator: Validator, where: str, value: object, nodes: Mapping[str, Node]
) -> set[str]:
    """Return the nodes that a list of names and ranges names."""
    names = set()
    for word in validator.text_list(where, value):
        for name in _expand_entry(validator, where, word):
            if name in nodes:
                names.add(name)
            elif nodes:
                message = f"there is no node {name}; the nodes are {_fold_names(list(nodes))}"
                validator.add(where, message, suggest(name, nodes))
    return names


def _check_distinct(validator: Validator, nodes: Iterable[Node], ssh: Mapping[str, Any]) -> None:
    node_of_login: dict[object, str] = {}
    for node in nodes:
        login = (node.host, node.user or ssh["user"], node.port or ssh["port"])
        if node.transport == "ssh" and node_of_login.setdefault(login, node.name) != node.name:
            message = f"{node.name} and {node_of_login[login]} are the same machine, {node.host}"
            hint = "one node takes nproc_per_node ranks"
            validator.add(f"cluster.nodes.{node.name}", message, hint)
