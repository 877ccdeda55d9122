"""How the nodes of a run find each other, and how often it starts anew: checked."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.validation import Checker, scalar
from runner.core.model.spec import Node, Relaunch, Rendezvous, Torchrun

BACKENDS = ("static", "standalone", "c10d", "etcd", "etcd-v2")
START_METHODS = ("spawn", "fork", "forkserver")
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")
ETCD = ("etcd", "etcd-v2")
LAST_PORT = 65535


def read_rendezvous(
    check: Checker, values: Mapping[str, Any], nodes: Sequence[Node], least: int | None
) -> Rendezvous:
    """Return it, as far as these nodes can meet by it."""
    backend = check.choice("rendezvous.backend", values["backend"], BACKENDS)
    endpoint = _endpoint(check, values["endpoint"])
    serve = check.optional_line("rendezvous.serve", values["serve"]) or ""
    key = "rendezvous.backend"
    if backend == "standalone" and len(nodes) > 1:
        what = f"standalone is for one node alone, and {len(nodes)} are to be used"
        check.wrong(key, what, "choose rendezvous=static or c10d, or set task.nnodes=1")
    if least is not None and backend in ("static", "standalone"):
        what = f"with {backend} no node can come or go, so a range of nodes makes no sense"
        check.wrong("task.nnodes", what, "choose rendezvous=c10d or etcd, or one number of nodes")
    if backend in ETCD and not endpoint and not serve:
        what = f"{backend} needs an etcd to meet at"
        hint = "set rendezvous.endpoint=HOST:PORT, or rendezvous.serve to a node that is to run one"
        check.wrong("rendezvous.endpoint", what, hint)
    if endpoint and serve:
        what = "there is an endpoint, and a node that is to serve one"
        check.wrong("rendezvous.serve", what, "rendezvous.endpoint=null takes the other out")
    for name, value in (("endpoint", endpoint), ("serve", serve)):
        if value and backend not in ETCD:
            check.wrong(f"rendezvous.{name}", f"{backend} takes none", "it is for rendezvous=etcd")
    names = [node.name for node in nodes]
    if serve and names and serve not in names:
        what = f"{serve} is not among the nodes to use: {', '.join(names)}"
        check.wrong("rendezvous.serve", what)
    return Rendezvous(backend, endpoint, serve)


def _endpoint(check: Checker, value: object) -> str:
    text = check.optional_line("rendezvous.endpoint", value) or ""
    form = r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]-][^\s:\[\]]*):([0-9]{1,5})"
    found = re.fullmatch(form, text)
    if text and not (found and 0 < int(found[2]) <= LAST_PORT):
        check.wrong("rendezvous.endpoint", f"must be HOST:PORT such as etcd1:2379, not {text!r}")
    return text


def read_torchrun(check: Checker, values: Mapping[str, Any]) -> Torchrun:
    """Return the options that were chosen of torchrun's."""

    def optional(name: str, legal: Sequence[str]) -> str:
        value = values[name]
        return "" if value is None else check.choice(f"torchrun.{name}", value, legal)

    interval, timeout = values["monitor_interval"], values["shutdown_timeout"]
    return Torchrun(
        max_restarts=check.number("torchrun.max_restarts", values["max_restarts"], least=0),
        monitor_interval=(
            None if interval is None else check.seconds("torchrun.monitor_interval", interval)
        ),
        rdzv_conf=_rdzv_conf(check, values["rdzv_conf"]),
        role=check.optional_line("torchrun.role", values["role"]) or "",
        start_method=optional("start_method", START_METHODS),
        signals_to_handle=_signals(check, values["signals_to_handle"]),
        numa_binding=optional("numa_binding", NUMA_BINDINGS),
        shutdown_timeout=(
            None if timeout is None else check.number("torchrun.shutdown_timeout", timeout, least=1)
        ),
    )


def _rdzv_conf(check: Checker, value: object) -> dict[str, str]:
    where = "torchrun.rdzv_conf"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        check.wrong(where, f"must be a mapping such as {{join_timeout: 600}}, not {value!r}")
        return {}
    conf = {}
    for name, item in value.items():
        text = scalar(item)
        if name == "is_host":
            check.wrong(f"{where}.{name}", "the plan decides that: cluster.master is the host")
        elif text is None or re.search(r"[,=\s]", f"{name}{text}"):
            check.wrong(
                f"{where}.{name}", f"must be a text without ',', '=' or space, not {item!r}"
            )
        else:
            conf[str(name)] = text
    return conf


def _signals(check: Checker, value: object) -> tuple[str, ...]:
    where = "torchrun.signals_to_handle"
    words = value.split(",") if isinstance(value, str) else value
    names = check.words(where, words)
    for name in names:
        if name not in signal.Signals.__members__:
            check.wrong(where, f"there is no signal {name!r}", "such as [SIGTERM, SIGUSR1]")
    missing = [name for name in ("SIGTERM",) if names and name not in names]
    if missing:
        check.wrong(where, "SIGTERM must be among them: a run is stopped by it")
    return names


def relaunch(
    check: Checker,
    values: Mapping[str, Any],
    rendezvous: Rendezvous,
    torchrun: Torchrun,
    *,
    restarts: bool,
) -> Relaunch:
    """Return how often a run starts once more; `max_restarts` means that too where torch cannot.

    `restarts` is whether it is asked for where nothing moves any more.
    """
    most = check.number("relaunch.max", values["max"], least=0)
    if rendezvous.backend == "static":
        most = max(most, torchrun.max_restarts)
    if restarts and not most:
        what = "restart needs to know how often"
        check.wrong("watch.action", what, "set relaunch.max to 1 or more, or watch.action=stop")
    return Relaunch(most, check.seconds("relaunch.backoff_s", values["backoff_s"]))
