"""Building a lab."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tests.lab.lab.anchor import LabNamespaces
from tests.lab.lab.disk import Disk
from tests.lab.lab.files import HostFiles, HostPlan, make_homes, put
from tests.lab.lab.host import Host
from tests.lab.lab.lab import Lab
from tests.lab.lab.programs import make_keys, public
from tests.lab.lab.switch import Leg, Switch, Uplink

LabFactory = Callable[..., AbstractContextManager[Lab]]

REPOSITORY = Path(__file__).parents[3]
FIRST_HOST = 11


@contextmanager
def make_lab(
    n: int = 4,
    names: Sequence[str] | None = None,
    *,
    shared_home: bool = False,  # all have one disk for their homes, as with NFS
    home_mb: int = 512,
    disk: type[Disk] = Disk,
    is_loopback: bool = False,  # a host's own name is 127.0.1.1 there, as Debian has it
    login_shell: Mapping[str, str] | None = None,  # of both users, where it is not bash
    rc_banner: bool = False,  # of sshd, and text that the shells' start-up files print
    sshd_options: Sequence[str] | Mapping[str, Sequence[str]] = (),  # for all, or by host
    keep: Iterable[Path] = (),
) -> Iterator[Lab]:
    """Makes a lab, there once every host's sshd listens; it is gone at the end of the `with`.

    Without `names` there are `n` hosts, called node1, node2, ... They see `keep` although it is
    below /tmp, /home, /run or /root, like the repository, this Python, and what is not hidden in
    /root.
    """
    names = list(names) if names is not None else [f"node{i + 1}" for i in range(n)]

    def plan(name: str, number: int, subnet: int) -> HostPlan:
        by_host = sshd_options if isinstance(sshd_options, Mapping) else {name: sshd_options}
        return HostPlan(
            name=name,
            leg=Leg(f"port{number}", f"10.77.{subnet}.{FIRST_HOST + number}"),
            disk="shared" if shared_home else f"of-{name}",
            is_loopback=is_loopback,
            login_shell=(login_shell or {}).get(name, "/bin/bash"),
            rc_banner=rc_banner,
            sshd_options=tuple(by_host.get(name, ())),
        )

    with ExitStack() as cleanup:
        tag = secrets.token_hex(3)
        # Below /tmp, where inside/boot.sh expects it: the hosts hide it from view.
        folder = Path(tempfile.mkdtemp(prefix=f"lab-{tag}-", dir="/tmp"))
        cleanup.callback(shutil.rmtree, folder)
        hosts: dict[str, Host] = {}
        cleanup.callback(_reap_all, hosts)
        anchor = LabNamespaces(folder)
        cleanup.callback(anchor.close)
        switch = Switch(anchor)
        uplink = Uplink(anchor, switch, tag)
        cleanup.callback(uplink.close)

        plans = [plan(name, number, uplink.number) for number, name in enumerate(names)]
        files = _write_files(plans, folder, [*_visible_paths(), *keep])
        disks: dict[str, Disk] = {}
        for each in plans:
            if each.disk not in disks:
                disks[each.disk] = disk(anchor, each.disk, home_mb)
                cleanup.callback(disks[each.disk].thaw)
                make_homes(disks[each.disk].path, each)
            hosts[each.name] = Host(each, files[each.name], disks[each.disk], anchor, switch)
        for host in hosts.values():
            host.start()
        for host in hosts.values():
            host.wait_ready()
        yield Lab(hosts, uplink.address, folder)


def _reap_all(hosts: Mapping[str, Host]) -> None:
    for host in hosts.values():
        host.reap()


def _write_files(
    plans: Sequence[HostPlan], folder: Path, keep: Iterable[Path]
) -> dict[str, HostFiles]:
    """Writes the keys, known_hosts, and what each host boots from."""
    files = {plan.name: HostFiles(folder / "hosts" / plan.name) for plan in plans}
    visible = list(_outermost(keep))
    key = folder / "key"
    for host_files in files.values():
        put(host_files.folder / "etc/ssh/ssh_config", "")  # makes the folder for the host key, too
    make_keys([key, *(host_files.host_key for host_files in files.values())])
    addresses = {plan.name: plan.address for plan in plans}
    for plan in plans:
        files[plan.name].write(plan, addresses=addresses, authorized_key=public(key), keep=visible)
    lines = (f"{plan.name},{plan.address} {public(files[plan.name].host_key)}\n" for plan in plans)
    put(folder / "known_hosts", "".join(lines))
    return files


def _visible_paths() -> Iterator[Path]:
    """Yields what every host must see of the machine."""
    yield from (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
    # Below /root, which is closed to ordinary users: other Pythons (pyenv's, uv's), and projects.
    pythons = (".pyenv", ".local")
    for path in Path("/root").iterdir():
        if path.is_dir() and (path.name in pythons or not path.name.startswith(".")):
            yield path


def _outermost(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the paths that exist and are not below another of them."""
    existing = {path.absolute() for path in paths if path.exists()}
    yield from sorted(path for path in existing if existing.isdisjoint(path.parents))
