"""The nodes of a cluster: its entries and ranges, overrides of them, and which are used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runner.config.inputs import Asked
from runner.config.validation import Checker, either, nearest, stranger
from runner.core.model.spec import Node

NODE_KEYS = (
    *("host", "addr", "user", "port", "gpus", "nproc_per_node"),
    *("env", "transport", "interface"),
)
TRANSPORTS = ("ssh", "local")
SIXTY = 60


def expand(entry: str) -> list[str]:
    """Return the names that `gpu[01-16]` stands for.

    Raises:
        ValueError: It is no range.
    """
    if not set(entry) & set("[],"):
        return [entry]
    # Here, because most clusters have no range and all would pay for the import.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # noqa: PLC0415

    try:
        return list(NodeSet(entry, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise ValueError(str(error)) from error


def _folded(names: Sequence[str]) -> str:
    """Return names as text, many of them as ranges."""
    if len(names) <= 8:  # noqa: PLR2004 (more than fit one line of a message)
        return ", ".join(names)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415

    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def _members(check: Checker, where: str, entry: str) -> list[str]:
    try:
        names = expand(entry)
    except ValueError as error:
        check.wrong(where, f"{entry!r} is no range of names: {error}", "such as gpu[01-16]")
        return []
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
            what = f"{name!r} is no node name; use letters, digits, '.', '_' and '-'"
            check.wrong(where, what, "the name becomes a folder; `host:` takes any address")
            return []
    return names


def all_nodes(check: Checker, asked: Asked) -> dict[str, Node]:
    """Return all nodes of the cluster in the order of the YAML."""
    cluster = asked.values["cluster"]
    entries = cluster["nodes"] or {}
    if not isinstance(entries, Mapping):
        check.wrong("cluster.nodes", "must be a mapping of names to settings, not " + repr(entries))
        return {}
    if not entries:
        example = "such as nodes: {gpu1: {host: 192.168.1.109}}"
        check.wrong("cluster.nodes", f"cluster {asked.cluster} names no node", example)
    settings: dict[str, dict[str, Any]] = {}
    for entry, body in _known(check, asked, entries):
        read = _node_settings(check, f"cluster.nodes.{entry}", body)
        for name in _members(check, f"cluster.nodes.{entry}", entry):
            _merge(settings.setdefault(name, {}), read)
    for name, body in _overridden(entries, asked.node_overrides):
        if name in settings:
            _merge(settings[name], _node_settings(Checker([]), name, body))
    defaults = {
        "transport": check.choice("cluster.transport", cluster["transport"], TRANSPORTS),
        "gpu_count": check.whole("cluster.gpus_per_node", cluster["gpus_per_node"], least=0),
        "nproc": check.whole("cluster.nproc_per_node", cluster["nproc_per_node"], least=1),
    }
    return {
        name: Node(name=name, **{**defaults, **own, "host": own.get("host") or name})
        for name, own in settings.items()
    }


def _known(check: Checker, asked: Asked, entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leave out, and report, what only a misspelt override made an entry."""
    if asked.declared is None:
        yield from entries.items()
        return
    members = (_members(Checker([]), "", entry) for entry in asked.declared)
    names = list(dict.fromkeys(name for group in members for name in group))
    for entry, body in entries.items():
        if entry in names or entry in asked.declared:
            yield entry, body
            continue
        what = f"there is no node {entry}; the nodes are {_folded(names)}"
        hint = f"+cluster.nodes.{entry}.host=ADDRESS adds one"
        if near := nearest(entry, names, "cluster.nodes."):
            hint = f"{near}\n{hint}"
        if any(name.startswith(f"{entry}.") for name in names):
            hint = f"on the command line a dot parts keys: call it {entry}, with `host: {entry}.…`"
        check.wrong(f"cluster.nodes.{entry}", what, hint)


def _overridden(
    entries: Mapping[str, Any], paths: Iterable[tuple[str, ...]]
) -> Iterator[tuple[str, Any]]:
    """Return what the command line says of nodes once more: it wins over every entry."""
    for name, *keys in paths:
        value: Any = entries.get(name)
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        for key in reversed(keys):
            value = {key: value}
        yield name, value


def _node_settings(check: Checker, where: str, body: object) -> dict[str, Any]:
    """Read one entry of `cluster.nodes` into fields of `Node`: of those that are there."""
    if body is None:
        return {}
    if not isinstance(body, Mapping):
        check.wrong(where, f"must be a mapping, not {body!r}", f"such as {{host: {body}}}")
        return {}
    check.problems += [stranger(where, key, NODE_KEYS) for key in body if key not in NODE_KEYS]
    readers = {
        "host": check.address,
        "addr": check.address,
        "user": check.optional_line,
        "port": check.port,
        "interface": check.optional_line,
        "env": check.env,
    }
    read: dict[str, Any] = {
        key: readers[key](f"{where}.{key}", body[key]) for key in readers if key in body
    }
    if "gpus" in body:
        read["gpu_count"], read["gpu_ids"] = check.gpus(f"{where}.gpus", body["gpus"])
    if "nproc_per_node" in body:
        read["nproc"] = check.whole(f"{where}.nproc_per_node", body["nproc_per_node"], least=1)
    if body.get("transport") is not None:
        read["transport"] = check.choice(f"{where}.transport", body["transport"], TRANSPORTS)
    return read


def _merge(into: dict[str, Any], later: Mapping[str, Any]) -> None:
    env = {**into.get("env", {}), **later.get("env", {})}
    into.update(later)
    into["env"] = env


def chosen(
    check: Checker, asked: Asked, nodes: Mapping[str, Node]
) -> tuple[tuple[Node, ...], tuple[Node, ...], int | None]:
    """Return the nodes to use, the spare ones, and with how many a run may go on.

    In rank order: the master first, then as in the YAML. The last is None for all of them.
    """
    cluster, task = asked.values["cluster"], asked.values["task"]
    filters = {
        "cluster.only": cluster["only"],
        "cluster.exclude": cluster["exclude"],
        "task.nodes": task["nodes"],
    }
    kept = list(nodes)
    for key, value in filters.items():
        named = _named(check, key, value, nodes)
        if named:
            kept = [name for name in kept if (name in named) != (key == "cluster.exclude")]
    if nodes and not kept:
        check.wrong("cluster.nodes", f"no node is left after {either(list(filters))}")
    master = cluster["master"]
    if nodes and master is not None and master not in nodes:
        what = f"there is no node {master}; the nodes are {_folded(list(nodes))}"
        check.wrong("cluster.master", what, nearest(str(master), nodes))
    elif master is not None and kept and master not in kept:
        what = f"{master} is not among the nodes to use: {_folded(kept)}"
        check.wrong("cluster.master", what, f"set cluster.master={kept[0]}, or null for the first")
    elif master is not None:
        kept.sort(key=lambda name: name != master)
    least, count = check.nnodes("task.nnodes", task["nnodes"])
    if count is not None and kept and count > len(kept):
        hint = f"a range may go up to {len(kept)}" if least else ""
        if count >= SIXTY and task["nnodes"] == count:  # YAML 1.1 reads 2:4 in base 60
            hint = f"if {count // SIXTY}:{count % SIXTY} is meant, put it in quotes"
        what = f"{count} nodes asked, {len(kept)} there: {_folded(kept)}"
        check.wrong("task.nnodes", what, hint)
    left = [nodes[name] for name in kept]
    _check_distinct(check, left, cluster["ssh"])
    used = len(kept) if count is None else count
    return tuple(left[:used]), tuple(left[used:]), least


def _named(check: Checker, where: str, value: object, nodes: Mapping[str, Node]) -> set[str]:
    """Return the nodes a list of names and ranges speaks of."""
    named = set()
    for word in check.words(where, value):
        for name in _members(check, where, word):
            if name in nodes:
                named.add(name)
            elif nodes:
                what = f"there is no node {name}; the nodes are {_folded(list(nodes))}"
                check.wrong(where, what, nearest(name, nodes))
    return named


def _check_distinct(check: Checker, nodes: Iterable[Node], ssh: Mapping[str, Any]) -> None:
    seen: dict[object, str] = {}
    for node in nodes:
        login = (node.host, node.user or ssh["user"], node.port or ssh["port"])
        if node.transport == "ssh" and seen.setdefault(login, node.name) != node.name:
            what = f"{node.name} and {seen[login]} are the same machine, {node.host}"
            check.wrong(f"cluster.nodes.{node.name}", what, "one node takes nproc_per_node ranks")
