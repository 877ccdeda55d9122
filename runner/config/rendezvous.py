"""Rendezvous, torchrun and relaunch settings, validated."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.validation import Validator, scalar_text
from runner.core.model.spec import Node, Relaunch, Rendezvous, Torchrun
from runner.core.planning.rendezvous_flags import BACKENDS

START_METHODS = ("spawn", "fork", "forkserver")
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")
ETCD_BACKENDS = ("etcd", "etcd-v2")
LAST_PORT = 65535


def read_rendezvous(
    validator: Validator, values: Mapping[str, Any], nodes: Sequence[Node], min_nodes: int | None
) -> Rendezvous:
    """Return the rendezvous, if these nodes can meet at it."""
    backend = validator.choice("rendezvous.backend", values["backend"], tuple(BACKENDS))
    endpoint = _read_endpoint(validator, values["endpoint"])
    serve = validator.optional_line("rendezvous.serve", values["serve"]) or ""
    key = "rendezvous.backend"
    if backend == "standalone" and len(nodes) > 1:
        message = f"standalone is for one node alone, and {len(nodes)} are to be used"
        validator.add(key, message, "choose rendezvous=static or c10d, or set task.nnodes=1")
    if min_nodes is not None and backend in ("static", "standalone"):
        message = f"with {backend} no node can join or leave, so a range of nodes makes no sense"
        validator.add(
            "task.nnodes", message, "choose rendezvous=c10d or etcd, or one number of nodes"
        )
    if backend in ETCD_BACKENDS and not endpoint and not serve:
        message = f"{backend} needs an etcd server"
        hint = "set rendezvous.endpoint=HOST:PORT, or rendezvous.serve to a node that is to run one"
        validator.add("rendezvous.endpoint", message, hint)
    if endpoint and serve:
        message = "both an endpoint and a node that serves one are set"
        validator.add("rendezvous.serve", message, "rendezvous.endpoint=null removes the endpoint")
    for name, value in (("endpoint", endpoint), ("serve", serve)):
        if value and backend not in ETCD_BACKENDS:
            validator.add(
                f"rendezvous.{name}", f"{backend} takes none", "it is for rendezvous=etcd"
            )
    names = [node.name for node in nodes]
    if serve and names and serve not in names:
        message = f"{serve} is not among the nodes to use: {', '.join(names)}"
        validator.add("rendezvous.serve", message)
    return Rendezvous(backend, endpoint, serve)


def _read_endpoint(validator: Validator, value: object) -> str:
    text = validator.optional_line("rendezvous.endpoint", value) or ""
    pattern = r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]-][^\s:\[\]]*):([0-9]{1,5})"
    match = re.fullmatch(pattern, text)
    if text and not (match and 0 < int(match[2]) <= LAST_PORT):
        validator.add("rendezvous.endpoint", f"must be HOST:PORT such as etcd1:2379, not {text!r}")
    return text


def read_torchrun(validator: Validator, values: Mapping[str, Any]) -> Torchrun:
    """Return the options of torchrun."""

    def optional(name: str, legal: Sequence[str]) -> str:
        value = values[name]
        return "" if value is None else validator.choice(f"torchrun.{name}", value, legal)

    interval, timeout = values["monitor_interval"], values["shutdown_timeout"]
    return Torchrun(
        max_restarts=validator.integer("torchrun.max_restarts", values["max_restarts"], minimum=0),
        monitor_interval=(
            None if interval is None else validator.seconds("torchrun.monitor_interval", interval)
        ),
        rdzv_conf=_read_rdzv_conf(validator, values["rdzv_conf"]),
        role=validator.optional_line("torchrun.role", values["role"]) or "",
        start_method=optional("start_method", START_METHODS),
        signals_to_handle=_read_signals(validator, values["signals_to_handle"]),
        numa_binding=optional("numa_binding", NUMA_BINDINGS),
        shutdown_timeout=(
            None
            if timeout is None
            else validator.integer("torchrun.shutdown_timeout", timeout, minimum=1)
        ),
    )


def _read_rdzv_conf(validator: Validator, value: object) -> dict[str, str]:
    where = "torchrun.rdzv_conf"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        validator.add(where, f"must be a mapping such as {{join_timeout: 600}}, not {value!r}")
        return {}
    conf = {}
    for name, item in value.items():
        text = scalar_text(item)
        if name == "is_host":
            validator.add(f"{where}.{name}", "the plan decides that: cluster.master is the host")
        elif text is None or re.search(r"[,=\s]", f"{name}{text}"):
            validator.add(
                f"{where}.{name}", f"must be a text without ',', '=' or space, not {item!r}"
            )
        else:
            conf[str(name)] = text
    return conf


def _read_signals(validator: Validator, value: object) -> tuple[str, ...]:
    where = "torchrun.signals_to_handle"
    words = value.split(",") if isinstance(value, str) else value
    names = validator.text_list(where, words)
    for name in names:
        if name not in signal.Signals.__members__:
            validator.add(where, f"there is no signal {name!r}", "such as [SIGTERM, SIGUSR1]")
    missing = [name for name in ("SIGTERM",) if names and name not in names]
    if missing:
        validator.add(where, "SIGTERM must be among them: a run is stopped by it")
    return names


def read_relaunch(
    validator: Validator,
    values: Mapping[str, Any],
    rendezvous: Rendezvous,
    torchrun: Torchrun,
    *,
    relaunch_on_stall: bool,
) -> Relaunch:
    """Return how often a run is relaunched.

    Args:
        validator: What reads the values.
        values: The section `relaunch`.
        rendezvous: How the nodes meet: with a static one torchrun cannot restart ranks.
        torchrun: The options of torchrun.
        relaunch_on_stall: Whether a run that hangs is to be relaunched.
    """
    max_relaunches = validator.integer("relaunch.max", values["max"], minimum=0)
    if rendezvous.backend == "static" and torchrun.max_restarts:
        message = "with a static rendezvous torchrun cannot restart the ranks"
        hint = f"set relaunch.max={torchrun.max_restarts} in its place, or choose rendezvous=c10d"
        validator.add("torchrun.max_restarts", message, hint)
    if relaunch_on_stall and not max_relaunches:
        message = "restart needs a number of relaunches"
        validator.add(
            "watch.action", message, "set relaunch.max to 1 or more, or watch.action=stop"
        )
    return Relaunch(max_relaunches, validator.seconds("relaunch.backoff_s", values["backoff_s"]))
