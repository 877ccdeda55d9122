"""Endpoint: the interface and address at which the other nodes reach a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    """Where a node is reached by its peers; `subnet` is that of the address. "" is unknown."""

    interface: str = ""
    address: str = ""
    subnet: str = ""
