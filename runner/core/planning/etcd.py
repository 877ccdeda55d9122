"""etcd as the place where nodes meet: what a host knows of one, and how a run starts its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from runner.core.model.order import Service
from runner.core.model.spec import Spec
from runner.core.text import bracketed

NAME = "etcd"

CLIENT = ("python-etcd", "etcd")
"""What torch speaks to it with: the distribution, and its module."""

WITHOUT_V2 = (3, 6)
"""From here on etcd has no v2 API (its CHANGELOG-3.6), and torch and python-etcd know no other."""


@dataclass(frozen=True)
class Answer:
    """How the endpoint of a run answered a host.

    Attributes:
        error: Why there was no answer, "" when there was one.
        version: The version of the etcd that answered, "" when it was none.
        v2: Whether it has the v2 API.
    """

    error: str = ""
    version: str = ""
    v2: bool = False


@dataclass(frozen=True)
class Etcd:
    """What a host was asked of etcd.

    Attributes:
        program: Its own, by its path; "" for none on PATH.
        version: That program's, "" when it did not tell.
        answer: How the endpoint answered; None when it was not tried.
    """

    program: str = ""
    version: str = ""
    answer: Optional[Answer] = None

    @property
    def speaks_v2(self) -> bool:
        """Whether its program has the v2 API; one that does not tell its version may."""
        parts = self.version.split(".")[:2]
        known = len(parts) == len(WITHOUT_V2) and all(part.isdigit() for part in parts)
        return not known or tuple(map(int, parts)) < WITHOUT_V2


def plain_http(spec: Spec) -> bool:
    """Whether torch is to speak to etcd without TLS, as we can."""
    return spec.torchrun.rdzv_conf.get("protocol", "http").strip().lower() == "http"


def served(node: str, addr: str, port: int, program: str) -> Service:
    """Return an etcd for the life of a run; it listens at that address alone."""
    url = f"http://{bracketed(addr)}:{port}"
    return Service(NAME, node, addr, port, (program, *_options(url)))


def _options(url: str) -> Tuple[str, ...]:
    """Its peers' side, which a single member never uses, is a socket in its own folder."""
    return (
        *("--name=runner", "--data-dir=data", "--enable-v2"),
        *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
        *("--listen-peer-urls=unix://peer:1", "--initial-advertise-peer-urls=http://peer:1"),
        "--initial-cluster=runner=http://peer:1",
    )
