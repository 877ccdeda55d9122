"""The controller's own connection to a lab's network."""

from __future__ import annotations

import json
import random
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.lab.programs import LabError, run
from tests.lab.lab.switch import wait_links_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab.anchor import LabNamespaces
    from tests.lab.lab.switch import Switch

BRIDGE = "lan0"
PORT = "controller"


class Uplink:
    """The controller's own leg: the only part of a lab in the machine's network namespace.

    Attributes:
        number: X of the lab's subnets 10.77.X.0/24 and up; no other lab on this machine has it.
        address: The controller's address.
    """

    def __init__(self, anchor: LabNamespaces, switch: Switch, tag: str) -> None:
        self._name = f"lab-{tag}"
        cable = f"type veth peer name {PORT} netns {anchor.pid}"
        self._ip(f"link add name {self._name} {cable}")
        anchor.ip(f"link set dev {PORT} master {BRIDGE} up")
        self._ip(f"link set dev {self._name} up")
        self.number = self._reserve()
        self.address = f"10.77.{self.number}.1"
        wait_links_up([Path(f"/sys/class/net/{self._name}"), switch.interface(PORT)])

    def close(self) -> None:
        """Removes it, with its address and route."""
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
