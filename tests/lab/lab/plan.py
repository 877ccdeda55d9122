"""Plan of a lab: its hosts and their networks, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from tests.lab.lab.programs import LabError
from tests.lab.lab.switch import Leg

T = TypeVar("T")
PerHost: TypeAlias = T | Mapping[str, T]
"""One value for all hosts, or by name for some of them; the others then have the default."""

OwnName = Literal["address", "loopback", "none"]
"""What a host's /etc/hosts says of its own name: its address, 127.0.1.1 (as Debian), nothing."""

INNER = "inner"
"""The bridge that the controller is not on."""

FIRST_HOST = 11
MOST_HOSTS = 254 - FIRST_HOST + 1


@dataclass(frozen=True)
class HostPlan:
    """What one host shall be.

    Attributes:
        name: Its hostname.
        legs: Its network interfaces; the address of the first is the host's address.
        disk: The name of the disk with its homes.
        port: Where its sshd listens.
        own_name: What its /etc/hosts says of its own name.
        login_shell: The shell of its accounts.
        rc_banner: Whether the shells' start-up files print text.
        sshd_options: Lines for its sshd_config, over the lab's own.
    """

    name: str
    legs: tuple[Leg, ...]
    disk: str
    port: int
    own_name: OwnName
    login_shell: str
    rc_banner: bool
    sshd_options: tuple[str, ...]

    @property
    def address(self) -> str:
        """The address others find it at."""
        return self.legs[0].address


@dataclass(frozen=True)
class Layout:
    """Which bridges there are, and who is on them.

    Attributes:
        nets: How many networks the ordinary hosts are on.
        isolated: The hosts that are on the inner network only.
        bastion: The host that is on the inner network as well.
    """

    nets: int
    isolated: tuple[str, ...]
    bastion: str

    @property
    def bridges(self) -> dict[str, str]:
        """Each bridge with the first two numbers of its subnet."""
        outer = {f"lan{i}": f"10.{77 + i}" for i in range(self.nets)}
        return outer | ({INNER: f"10.{77 + self.nets}"} if self.isolated else {})

    def legs(self, name: str, number: int, subnet: int) -> tuple[Leg, ...]:
        """Returns the legs of the `number`-th host, from 0."""
        outer = [bridge for bridge in self.bridges if bridge != INNER]
        if name in self.isolated:
            bridges = [INNER]
        elif name == self.bastion:
            bridges = [*outer, INNER]
        else:
            bridges = outer
        return tuple(
            Leg(
                interface=f"eth{i}",
                bridge=bridge,
                port=f"port{number}.{i}",
                address=f"{self.bridges[bridge]}.{subnet}.{FIRST_HOST + number}",
            )
            for i, bridge in enumerate(bridges)
        )


@dataclass(frozen=True)
class Options:
    """What all hosts shall be, or some of them by name; `make_lab` explains each."""

    port: PerHost[int]
    own_name: PerHost[OwnName]
    login_shell: PerHost[str]
    rc_banner: PerHost[bool]
    sshd_options: PerHost[Sequence[str]]

    def check(self, names: Collection[str]) -> None:
        """Refuses options for hosts that are not there.

        Raises:
            LabError: One names an unknown host.
        """
        for key, option in vars(self).items():
            if isinstance(option, Mapping):
                _check_known(key, option, names)

    def plan(self, name: str, legs: tuple[Leg, ...], disk: str) -> HostPlan:
        """Returns what one host shall be."""
        return HostPlan(
            name=name,
            legs=legs,
            disk=disk,
            port=_pick(self.port, name, 22),
            own_name=_pick(self.own_name, name, "address"),
            login_shell=_pick(self.login_shell, name, "/bin/bash"),
            rc_banner=_pick(self.rc_banner, name, default=False),
            sshd_options=tuple(_pick(self.sshd_options, name, ())),
        )


def plan_layout(
    names: Sequence[str], nets: int, isolated: Sequence[str], bastion: str | None
) -> Layout:
    """Checks and completes the lab's shape.

    Raises:
        LabError: It cannot be built.
    """
    _check_known("isolated", isolated, names)
    reachable = [name for name in names if name not in isolated]
    if not reachable or len(names) > MOST_HOSTS:
        raise LabError(f"a lab has at least one host that is not isolated, and {MOST_HOSTS} in all")
    if len(set(names)) < len(names):
        raise LabError(f"names: two hosts are called the same: {', '.join(names)}")
    if nets < 1:
        raise LabError("nets: there must be at least one")
    if bastion is not None:
        _check_known("bastion", [bastion], reachable)
    bastion_name = (bastion or reachable[0]) if isolated else ""
    return Layout(nets=nets, isolated=tuple(isolated), bastion=bastion_name)


def _pick(option: PerHost[T], name: str, default: T) -> T:
    return option.get(name, default) if isinstance(option, Mapping) else option


def _check_known(key: str, chosen: Iterable[str], names: Collection[str]) -> None:
    if unknown := [name for name in chosen if name not in names]:
        raise LabError(f"{key}: no host is called {', '.join(unknown)}, only {', '.join(names)}")
