"""etcd for the rendezvous: the command of the one that a run starts itself."""

from __future__ import annotations

from typing import Tuple

from runner.core.model.etcd import SIDECAR_NAME
from runner.core.model.order import Sidecar
from runner.core.model.spec import Spec
from runner.core.text import bracket_ipv6


def uses_plain_http(spec: Spec) -> bool:
    """Return whether torch uses etcd without TLS, which is what we can probe."""
    return spec.torchrun.rdzv_conf.get("protocol", "http").strip().lower() == "http"


def etcd_sidecar(node: str, addr: str, port: int, program: str) -> Sidecar:
    """Return the etcd of an attempt; it listens on that address only."""
    url = f"http://{bracket_ipv6(addr)}:{port}"
    return Sidecar(SIDECAR_NAME, node, addr, port, (program, *_options(url)))


def _options(url: str) -> Tuple[str, ...]:
    """Return etcd's options; the peer port, which is not used, is a socket in its folder."""
    return (
        *("--name=runner", "--data-dir=data", "--enable-v2"),
        *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
        *("--listen-peer-urls=unix://peer:1", "--initial-advertise-peer-urls=http://peer:1"),
        "--initial-cluster=runner=http://peer:1",
    )
