"""etcd as the place where nodes meet: what a host knows of one, and how a run starts its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from runner.core.model.order import Sidecar
from runner.core.model.spec import Spec
from runner.core.text import bracket_ipv6

SIDECAR_NAME = "etcd"

CLIENT_PACKAGE = ("python-etcd", "etcd")
"""What torch speaks to it with: the distribution, and its module."""

V2_REMOVED_IN = (3, 6)
"""From here on etcd has no v2 API (its CHANGELOG-3.6), and torch and python-etcd know no other."""


@dataclass(frozen=True)
class EndpointReply:
    """How the endpoint of a run answered a host.

    Attributes:
        error: Why there was no answer, "" when there was one.
        version: The version of the etcd that answered, "" when it was none.
        has_v2: Whether it has the v2 API.
    """

    error: str = ""
    version: str = ""
    has_v2: bool = False


@dataclass(frozen=True)
class EtcdFacts:
    """What a host was asked of etcd.

    Attributes:
        program: Its own, by its path; "" for none on PATH.
        version: That program's, "" when it did not tell.
        endpoint_reply: How the endpoint answered; None when it was not tried.
    """

    program: str = ""
    version: str = ""
    endpoint_reply: Optional[EndpointReply] = None

    @property
    def supports_v2(self) -> bool:
        """Whether its program has the v2 API; one that does not tell its version may."""
        parts = self.version.split(".")[:2]
        is_numeric = len(parts) == len(V2_REMOVED_IN) and all(part.isdigit() for part in parts)
        return not is_numeric or tuple(map(int, parts)) < V2_REMOVED_IN


def uses_plain_http(spec: Spec) -> bool:
    """Whether torch is to speak to etcd without TLS, as we can."""
    return spec.torchrun.rdzv_conf.get("protocol", "http").strip().lower() == "http"


def etcd_sidecar(node: str, addr: str, port: int, program: str) -> Sidecar:
    """Return an etcd for the life of a run; it listens at that address alone."""
    url = f"http://{bracket_ipv6(addr)}:{port}"
    return Sidecar(SIDECAR_NAME, node, addr, port, (program, *_options(url)))


def _options(url: str) -> Tuple[str, ...]:
    """Its peers' side, which a single member never uses, is a socket in its own folder."""
    return (
        *("--name=runner", "--data-dir=data", "--enable-v2"),
        *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
        *("--listen-peer-urls=unix://peer:1", "--initial-advertise-peer-urls=http://peer:1"),
        "--initial-cluster=runner=http://peer:1",
    )
