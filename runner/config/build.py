"""From composed values to a `Spec`: every check that needs no host, all problems at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from runner.checks.all import CHECKS
from runner.config.arguments import arguments, split_words
from runner.config.checks import Checker, either, nearest, scalar, stranger
from runner.core.composed import DryRun
from runner.core.errors import ConfigError, Problem
from runner.core.secret import Secret
from runner.core.spec import Deploy, Node, Spec, Ssh, Task

NODE_KEYS = (
    *("host", "addr", "user", "port", "gpus", "nproc_per_node"),
    *("env", "transport", "interface"),
)
PROGRAM_KEYS = ("module", "script", "command")
TRANSPORTS = ("ssh", "local")
BACKENDS = ("auto", "nccl", "gloo")
DEPLOYS = ("auto", "never")
PULLS = ("auto", "never")
HOST_KEYS = ("strict", "accept-new")
ACTIONS = ("report", "stop")
STACKS = ("auto", "never")


@dataclass(frozen=True)
class Asked:
    """Composed values, and what else decides what they mean.

    Attributes:
        values: The configuration, resolved; every key of the schema is there.
        cluster: The name of the cluster's YAML file.
        task: The name of the task's.
        cwd: The folder the user stands in.
        environ: The user's environment.
        node_overrides: The paths below `cluster.nodes` that the command line sets.
        declared: The entries `cluster.nodes` may have; None for whatever it has.
    """

    values: Mapping[str, Any]
    cluster: str
    task: str
    cwd: str
    environ: Mapping[str, str]
    node_overrides: Sequence[tuple[str, ...]] = ()
    declared: Sequence[str] | None = None


def build(asked: Asked, problems: list[Problem]) -> tuple[Spec, dict[str, Any]]:
    """Check everything; return the `Spec` and the fields of `Composed` that are options of the run.

    Args:
        asked: What was composed.
        problems: What was found before; told together with what is found here.

    Raises:
        ConfigError: With every problem.
    """
    check = Checker(problems)
    values, cluster = asked.values, asked.values["cluster"]
    nodes = _chosen(check, asked, _nodes(check, asked))
    task = _task(check, asked)
    env, secrets = _environment(check, asked, nodes, task)
    spec = Spec(
        run_id=check.run_id("run_id", values["run_id"]),
        cluster=asked.cluster,
        nodes=nodes,
        task=task,
        master_port=check.ports("cluster.master_port", cluster["master_port"]),
        backend=check.choice("cluster.backend", cluster["backend"], BACKENDS),
        ssh=_ssh(check, cluster["ssh"], asked.cwd),
        python=check.line("cluster.python", cluster["python"]),
        host_python=check.line("cluster.host_python", cluster["host_python"]),
        setup=check.words("cluster.setup", cluster["setup"]),
        project=_project(check, cluster["project"], asked),
        workdir=check.line("cluster.workdir", cluster["workdir"]),
        deploy=_deploy(check, values),
        pull_outputs=check.choice("outputs.pull", values["outputs"]["pull"], PULLS) == "auto",
        skip_checks=tuple(
            check.choice("check.skip", name, tuple(CHECKS))
            for name in check.words("check.skip", values["check"]["skip"])
        ),
        env=env,
        secrets=secrets,
        grace_s=check.seconds("stop.grace_s", values["stop"]["grace_s"]),
        lost_s=check.seconds("lost_s", values["lost_s"]),
        disconnect_s=_disconnect_s(check, values),
        stall_s=_stall_s(check, values["watch"]["stall_s"]),
        stall_stops=check.choice("watch.action", values["watch"]["action"], ACTIONS) == "stop",
        stacks=check.choice("watch.stacks", values["watch"]["stacks"], STACKS) == "auto",
        detach=bool(values["detach"]),
    )
    run_dir = Path(check.line("run_dir", values["run_dir"])).expanduser()
    dry_run = check.choice("dry_run", scalar(values["dry_run"]), [d.value for d in DryRun])
    options = {
        "dry_run": DryRun(dry_run),
        "run_dir": Path(asked.cwd, run_dir),
        "ui": check.choice("ui", values["ui"], ("auto", "plain")),
        "console_ranks": check.ranks("logs.ranks", values["logs"]["ranks"]),
    }
    if problems:
        raise ConfigError(problems)
    return spec, options


def _disconnect_s(check: Checker, values: Mapping[str, Any]) -> float:
    """Return how long a run goes on without a controller; 0 for ever."""
    seconds = check.seconds("disconnect_s", values["disconnect_s"])
    keep = check.choice("on_disconnect", values["on_disconnect"], ("stop", "keep")) == "keep"
    return 0.0 if keep else seconds


def _stall_s(check: Checker, value: object) -> float:
    """Return after how long without progress that is said; 0 for never."""
    if value in ("off", False, None):  # YAML takes off for false
        return 0.0
    if isinstance(value, str):
        check.wrong("watch.stall_s", f"must be a number of seconds, or off, not {value!r}")
        return 0.0
    return check.seconds("watch.stall_s", value)


def program_name(task: Mapping[str, Any]) -> str:
    """Return a short name for the program a task without a YAML file runs."""
    if task.get("module"):
        return str(task["module"]).rpartition(".")[2]
    command = task.get("command") or ""
    words = command if isinstance(command, list) else str(command).split()
    program = task.get("script") or (words[0] if words else "")
    return PurePath(str(program)).stem or "task"


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


def _nodes(check: Checker, asked: Asked) -> dict[str, Node]:
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


def _chosen(check: Checker, asked: Asked, nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """Return the nodes to use in rank order: the master first, then as in the YAML."""
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
    count = check.whole("task.nnodes", task["nnodes"], least=1)
    if count is not None and kept and count > len(kept):
        check.wrong("task.nnodes", f"{count} nodes asked, {len(kept)} there: {_folded(kept)}")
    chosen = tuple(nodes[name] for name in kept[:count])
    _check_distinct(check, chosen, cluster["ssh"])
    return chosen


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


def _ssh(check: Checker, ssh: Mapping[str, Any], cwd: str) -> Ssh:
    key = check.optional_line("cluster.ssh.key", ssh["key"])
    if key and not Path(cwd, Path(key).expanduser()).is_file():
        check.wrong("cluster.ssh.key", f"there is no file {key}")
    jump = check.words("cluster.ssh.jump", ssh["jump"])
    return Ssh(
        user=check.optional_line("cluster.ssh.user", ssh["user"]),
        port=check.port("cluster.ssh.port", ssh["port"]),
        key=key,
        config=check.line("cluster.ssh.config", ssh["config"]),
        jump=tuple(hop.strip() for word in jump for hop in word.split(",")),
        known_hosts=check.line("cluster.ssh.known_hosts", ssh["known_hosts"]),
        host_keys=check.choice("cluster.ssh.host_keys", ssh["host_keys"], HOST_KEYS),
        connect_timeout=check.seconds("cluster.ssh.connect_timeout", ssh["connect_timeout"]),
    )


def _project(check: Checker, value: object, asked: Asked) -> str:
    """Return where the code is on the hosts: by default where the user stands, as they see it."""
    project = check.optional_line("cluster.project", value)
    if project and project.startswith("~"):
        return project
    seen = Path(asked.environ.get("PWD", ""))
    same = seen.is_absolute() and seen.exists() and seen.samefile(asked.cwd)
    return str((seen if same else Path(asked.cwd)) / (project or ""))


def _deploy(check: Checker, values: Mapping[str, Any]) -> Deploy:
    """Return what is pushed: nothing where the YAML says that the code is on the hosts already."""
    cluster, bounds = values["cluster"], values["deploy"]
    when = check.choice("cluster.deploy", cluster["deploy"], DEPLOYS)
    return Deploy(
        on=when == "auto" and cluster["project"] is None,
        max_mb=check.number("deploy.max_mb", bounds["max_mb"], least=1),
        keep=check.number("deploy.keep", bounds["keep"], least=0),
    )


def _environment(
    check: Checker, asked: Asked, nodes: Sequence[Node], task: Task
) -> tuple[dict[str, str], dict[str, Secret]]:
    """Return the environment of all ranks, and its secret part."""
    cluster = asked.values["cluster"]
    passed = _copied(check, "cluster.pass_env", cluster["pass_env"], asked.environ)
    secrets = _copied(check, "cluster.secrets", cluster["secrets"], asked.environ)
    env = check.env("cluster.env", cluster["env"])
    in_the_open = {"cluster.pass_env": passed, "cluster.env": env, "task.env": task.env}
    in_the_open |= {f"cluster.nodes.{node.name}.env": node.env for node in nodes}
    for place, names in in_the_open.items():
        for name in secrets.keys() & names.keys():
            check.wrong(place, f"{name} is a secret (cluster.secrets) and would be recorded here")
    return {**passed, **env}, {name: Secret(text) for name, text in secrets.items()}


def _copied(
    check: Checker, where: str, value: object, environ: Mapping[str, str]
) -> dict[str, str]:
    names = check.words(where, value)
    for name in names:
        check.env_name(where, name)
        if name not in environ:
            hint = f"export {name}=… first, or take it out of {where}"
            check.wrong(where, f"{name} is not set in this shell's environment", hint)
    return {name: environ[name] for name in names if name in environ}


def _task(check: Checker, asked: Asked) -> Task:
    task = asked.values["task"]
    given = [key for key in PROGRAM_KEYS if task[key] not in (None, "", [])]
    if not given:
        keys = either([f"task.{key}" for key in PROGRAM_KEYS])
        check.wrong("task", f"there is nothing to run; set {keys}", "such as task.script=train.py")
    if len(given) > 1:
        what = f"there is more than one thing to run: {' and '.join(given)}"
        check.wrong("task", what, f"task.{given[0]}=null takes one out")
    kind = given[0] if given else "script"
    target, *words = _program(check, kind, task[kind])
    return Task(
        name=asked.task,
        kind=kind,
        target=target,
        args=(*words, *arguments(check, task["args"], task["args_style"])),
        env=check.env("task.env", task["env"]),
        outputs=check.outputs("task.outputs", task["outputs"]),
    )


def _program(check: Checker, kind: str, value: object) -> list[str]:
    where = f"task.{kind}"
    if kind == "command":
        words = check.words(
            where, value if isinstance(value, list) else split_words(check, where, value)
        )
        return list(words) or [""]
    text = check.optional_line(where, value) or ""
    named = re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", text) and not text.endswith(".py")
    if kind == "module" and not named:
        what = f"{text!r} is no module name such as package.train"
        check.wrong(where, what, f"a file is task.script={text}")
    return [text]
