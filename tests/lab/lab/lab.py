"""Several hosts and what joins them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from tests.lab.lab.files import LOGIN_USER
from tests.lab.lab.programs import run
from tests.lab.waiting import TimedOut, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.lab.host import Host
    from tests.lab.lab.processes import Process

T = TypeVar("T")


class Lab:
    """Hosts on a network of their own, with this process, the controller, as their neighbour."""

    def __init__(self, hosts: Mapping[str, Host], address: str, folder: Path) -> None:
        self.hosts = dict(hosts)
        self.address = address  # of the controller
        self.key = folder / "key"  # opens every account of every host
        self.known_hosts = folder / "known_hosts"
        self.transport = "ssh"  # of the clusters that are written from now on

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def cluster(
        self,
        names: Iterable[str] | None = None,
        ssh: Mapping[str, object] | None = None,
        **overrides: object,
    ) -> dict[str, Any]:
        """Returns what a user would write in conf/cluster/NAME.yaml about these hosts, or all.

        `ssh` is laid over the usual settings, key by key, and `overrides` over the result.
        """
        chosen = [self.hosts[name] for name in (names if names is not None else self.hosts)]
        usual = {
            "user": LOGIN_USER,
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
            "config": "/dev/null",
        }
        return {
            "defaults": ["base"],
            "transport": self.transport,
            "nodes": {host.name: {"host": host.address} for host in chosen},
            "python": sys.executable,
            **overrides,
            "ssh": {**usual, **(ssh or {})},
        }

    def write_cluster(
        self,
        folder: Path,
        name: str = "lab",
        names: Iterable[str] | None = None,
        **overrides: Any,
    ) -> Path:
        path = folder / "cluster" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(self.cluster(names, **overrides), sort_keys=False))
        return path

    @contextlib.contextmanager
    def cut_off(self, *names: str) -> Iterator[None]:
        """Loses every packet between the controller and those hosts (all, if none is named).

        They still reach each other, and their cables carry: only the neighbours' addresses are
        wrong for a while.
        """
        chosen = [self.hosts[name] for name in names or self.hosts]
        dead_neighbour = "lladdr 02:00:00:00:0b:ad nud permanent dev"
        route = run(["ip", "-json", "route", "get", chosen[0].address])
        uplink = json.loads(route)[0]["dev"]
        for host in chosen:
            run(["sh", "-c", f"ip neigh replace {host.address} {dead_neighbour} {uplink}"])
            host.sh(f"ip neigh replace {self.address} {dead_neighbour} eth0", user="root")
        try:
            yield
        finally:
            for host in chosen:
                run(["ip", "neigh", "del", host.address, "dev", uplink], check=False)
                if host.is_on:
                    host.sh(f"ip neigh del {self.address} dev eth0", user="root", check=False)

    def repair(self) -> None:
        """Undoes whatever was done to the hosts; their files and processes stay."""
        for host in self.hosts.values():
            host.repair()

    def leftovers(self) -> dict[str, list[Process]]:
        return self._per_host(lambda host: host.leftovers())

    def wait_idle(self, timeout_s: float | None = None) -> dict[str, list[Process]]:
        """Returns the leftovers once there are none, or those there are after so many seconds.

        Without `timeout_s` no rank may be there; the far end of a connection that was closed a
        moment ago is given that moment.
        """
        ranks = self._per_host(lambda host: host.processes("RUNNER_RUN_ID"))
        if timeout_s is None and ranks:
            return ranks
        with contextlib.suppress(TimedOut):
            wait_until(lambda: not self.leftovers(), "the hosts to be idle", timeout=timeout_s or 3)
        return self.leftovers()

    def crashes(self) -> dict[str, list[str]]:
        return self._per_host(lambda host: host.crashes())

    def kill_all(self) -> None:
        for host in self.hosts.values():
            host.kill_all()

    def reset_homes(self) -> None:
        """Gives all accounts the homes they had at first: no run, no release, no file of theirs."""
        for host in self.hosts.values():
            host.reset_homes()

    def _per_host(self, query: Callable[[Host], list[T]]) -> dict[str, list[T]]:
        """Returns what each host has, by name; hosts with nothing are not named."""
        found = {name: query(host) for name, host in self.hosts.items()}
        return {name: items for name, items in found.items() if items}
