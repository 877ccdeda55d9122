"""The lab's network: a bridge and cables."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.lab.anchor import LabNamespaces
from tests.lab.lab.programs import LabError, run
from tests.lab.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORWARDING = "3"
"""The state of a bridge's port that lets frames through."""

BRIDGE = "lan0"
PORT = "controller"
INTERFACE = "eth0"  # of each host


@dataclass(frozen=True)
class Leg:
    """The network interface of a host, and its cable to a port of the switch; subnets are /24."""

    port: str
    address: str

    @property
    def mac(self) -> str:
        """Its hardware address: fixed, so that a rebooted host is found in others' ARP tables."""
        return "02:4c:" + IPv4Address(self.address).packed.hex(":")


class Switch:
    """The bridge and cables of a lab.

    All in the anchor's network namespace: its names clash with nothing, the machine's firewall
    does not see its traffic, and without an address of its own it answers nobody.
    """

    def __init__(self, anchor: LabNamespaces) -> None:
        self._anchor = anchor
        anchor.ip(f"link add name {BRIDGE} type bridge", f"link set dev {BRIDGE} up")

    def connect(self, host: str, leg: Leg) -> str:
        """Gives a host a new network namespace with its leg; returns the path to enter it by."""
        peer = f"peer name {INTERFACE} address {leg.mac} netns {host}"
        self._anchor.ip(
            f"netns add {host}",
            f"link add name {leg.port} type veth {peer}",
            f"link set dev {leg.port} master {BRIDGE} up",
        )
        return str(self._anchor.path(f"/run/netns/{host}"))

    def disconnect(self, host: str, leg: Leg) -> None:
        """Takes away what `connect` gave, as far as it is there."""
        self._anchor.ip(f"link delete dev {leg.port}", f"netns delete {host}", force=True)

    def set_link(self, leg: Leg, *, up: bool) -> None:
        self._anchor.ip(f"link set dev {leg.port} {'up' if up else 'down'}")

    def interface(self, port: str) -> Path:
        return self._anchor.path(f"/run/sys/class/net/{port}")


def wait_links_up(interfaces: Sequence[Path]) -> None:
    """Returns once frames pass: the kernel acts on a new link only when it finds the time."""
    names = ", ".join(interface.name for interface in interfaces)
    wait_until(lambda: all(map(_is_forwarding, interfaces)), f"{names} to pass frames")


def _is_forwarding(interface: Path) -> bool:
    bridged = interface / "brport/state"
    is_up = (interface / "operstate").read_text() == "up\n"
    return is_up and (not bridged.exists() or bridged.read_text() == f"{FORWARDING}\n")


class Uplink:
    """The controller's own leg: the only part of a lab in the machine's network namespace."""

    def __init__(self, anchor: LabNamespaces, switch: Switch, tag: str) -> None:
        self._name = f"lab-{tag}"
        cable = f"type veth peer name {PORT} netns {anchor.pid}"
        self._ip(f"link add name {self._name} {cable}")
        anchor.ip(f"link set dev {PORT} master {BRIDGE} up")
        self._ip(f"link set dev {self._name} up")
        self.number = self._reserve()  # X of the lab's subnets 10.77.X.0/24 and up
        self.address = f"10.77.{self.number}.1"
        wait_links_up([Path(f"/sys/class/net/{self._name}"), switch.interface(PORT)])

    def close(self) -> None:
        self._ip(f"link delete dev {self._name}")

    def _reserve(self) -> int:
        taken = list(_local_networks())
        for number in random.sample(range(256), 256):
            subnet = IPv4Network(f"10.77.{number}.0/24")
            if not any(subnet.overlaps(other) for other in taken) and self._claim(subnet):
                return number
        raise LabError("no subnet 10.77.X.0/24 is free on this machine")

    def _claim(self, subnet: IPv4Network) -> bool:
        # Two labs may want the same subnet at once. The kernel takes the same address twice, but
        # never the same route from `route add`: so the route decides.
        address = f"{subnet[1]}/{subnet.prefixlen}"
        self._ip(f"address add {address} dev {self._name} noprefixroute")
        try:
            self._ip(f"route add {subnet} dev {self._name} src {subnet[1]}")
        except LabError:
            self._ip(f"address delete {address} dev {self._name}")
            return False
        return True

    @staticmethod
    def _ip(command: str) -> None:
        run(["ip", *command.split()])


def _local_networks() -> Iterator[IPv4Network]:
    """Yields the networks this machine is on; a far one (a VPN's 10.0.0.0/8) is no obstacle."""
    for route in json.loads(run(["ip", "-json", "-4", "route", "show"])):
        if route["dst"] != "default" and "gateway" not in route:
            yield IPv4Network(route["dst"])
