"""Building a lab."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.lab.lab.anchor import LabNamespaces
from tests.lab.lab.disk import Disk
from tests.lab.lab.files import HostFiles, make_homes, put
from tests.lab.lab.host import Host
from tests.lab.lab.keys import make_keys, public
from tests.lab.lab.lab import Lab
from tests.lab.lab.plan import HostPlan, Layout, Options, OwnName, PerHost, plan_layout
from tests.lab.lab.switch import Switch
from tests.lab.lab.uplink import Uplink

LabFactory = Callable[..., Lab]
"""`make_lab`, but the labs are closed at the end of the test."""

REPOSITORY = Path(__file__).parents[3]


def make_lab(
    n: int = 4,
    names: Sequence[str] | None = None,
    *,
    nets: int = 1,
    isolated: Sequence[str] = (),
    bastion: str | None = None,
    shared_home: bool | Sequence[str] = False,
    home_mb: int = 512,
    disk: type[Disk] = Disk,
    own_name: PerHost[OwnName] = "address",
    login_shell: PerHost[str] = "/bin/bash",
    rc_banner: PerHost[bool] = False,
    sshd_options: PerHost[Sequence[str]] = (),
    port: PerHost[int] = 22,
    keep: Iterable[Path] = (),
) -> Lab:
    """Makes a lab and returns it once every host's sshd listens.

    An option that is a mapping is meant per host; hosts it does not name have the default.

    Args:
        n: How many hosts, called node1, node2, ...
        names: Their names instead; then `n` does not count.
        nets: How many networks they are all on (eth0, eth1, ...). The controller is on the first.
        isolated: The hosts that only the bastion and each other can reach.
        bastion: The host with one more leg, to the isolated ones; unless given, the first other.
        shared_home: Whether all hosts, or which, have one common disk for their homes, as with NFS.
        home_mb: The size of a disk.
        disk: What kind of disks they have; some kinds can be frozen.
        own_name: What a host's /etc/hosts says of its own name: its address, as Debian 127.0.1.1
            ("loopback"), or nothing ("none").
        login_shell: The shell of root and alice.
        rc_banner: Whether sshd shows a banner, and the shells' start-up files print text as well.
        sshd_options: Lines for sshd_config; they win over the lab's own.
        port: Where sshd listens.
        keep: Folders that the hosts must see although they are below /tmp, /home, /run or /root.
            The repository, this Python, pyenv, and what is not hidden in /root are kept anyway.
    """
    names = list(names) if names is not None else [f"node{i + 1}" for i in range(n)]
    options = Options(port, own_name, login_shell, rc_banner, sshd_options)
    options.check(names)
    layout = plan_layout(names, nets, isolated, bastion)
    sharing = names if shared_home is True else (shared_home or ())
    disks = {name: "shared" if name in sharing else f"of-{name}" for name in names}

    def plans(subnet: int) -> list[HostPlan]:
        return [
            options.plan(name, layout.legs(name, number, subnet), disks[name])
            for number, name in enumerate(names)
        ]

    make_disk = partial(disk, megabytes=home_mb)
    return _build(plans, layout, make_disk, [*_visible_paths(), *keep])


def _build(
    plans: Callable[[int], Sequence[HostPlan]],
    layout: Layout,
    make_disk: Callable[[LabNamespaces, str], Disk],
    keep: Sequence[Path],
) -> Lab:
    """Builds a lab, or nothing: what was built so far is removed on an error.

    Args:
        plans: Returns the hosts once it is known which subnet they get.
        layout: The networks.
        make_disk: Makes a disk, by its name.
        keep: What the hosts must see of the machine.
    """
    with ExitStack() as cleanup:
        tag = secrets.token_hex(3)
        # Below /tmp, where inside/boot.sh expects it: the hosts hide it from view.
        folder = Path(tempfile.mkdtemp(prefix=f"lab-{tag}-", dir="/tmp"))
        cleanup.callback(shutil.rmtree, folder)
        hosts: dict[str, Host] = {}
        cleanup.callback(_reap_all, hosts)
        anchor = LabNamespaces(folder)
        cleanup.callback(anchor.close)
        switch = Switch(anchor, layout.bridges)
        cleanup.callback(switch.close)
        uplink = Uplink(anchor, switch, tag)
        cleanup.callback(uplink.close)

        host_plans = plans(uplink.number)
        files = _write_files(host_plans, folder, keep)
        disks = _make_disks(host_plans, lambda name: make_disk(anchor, name))
        for disk in disks.values():
            cleanup.callback(disk.thaw)
        for plan in host_plans:
            hosts[plan.name] = Host(plan, files[plan.name], disks[plan.disk], anchor, switch)
        for host in hosts.values():
            host.start()
        for host in hosts.values():
            host.wait_ready()
        return Lab(hosts, uplink.address, folder, cleanup.pop_all())


def _reap_all(hosts: Mapping[str, Host]) -> None:
    for host in hosts.values():
        host.reap()


def _write_files(
    plans: Sequence[HostPlan], folder: Path, keep: Iterable[Path]
) -> dict[str, HostFiles]:
    """Writes the keys, known_hosts, and what each host boots from."""
    files = {plan.name: HostFiles(folder / "hosts" / plan.name) for plan in plans}
    visible = list(_outermost(keep))
    key, wrong_key = folder / "key", folder / "wrong_key"
    for host_files in files.values():
        put(host_files.folder / "etc/ssh/ssh_config", "")  # makes the folder for the host key, too
    make_keys([key, wrong_key, *(host_files.host_key for host_files in files.values())])
    addresses = {plan.name: plan.address for plan in plans}
    for plan in plans:
        files[plan.name].write(plan, addresses=addresses, authorized_key=public(key), keep=visible)
    lines = (f"{_known_hosts_names(plan)} {public(files[plan.name].host_key)}\n" for plan in plans)
    put(folder / "known_hosts", "".join(lines))
    return files


def _make_disks(plans: Sequence[HostPlan], make_disk: Callable[[str], Disk]) -> dict[str, Disk]:
    disks: dict[str, Disk] = {}
    for plan in plans:
        if plan.disk not in disks:
            disks[plan.disk] = make_disk(plan.disk)
            make_homes(disks[plan.disk].path, plan)
    return disks


def _known_hosts_names(plan: HostPlan) -> str:
    names = (plan.name, plan.address)
    return ",".join(names if plan.port == 22 else (f"[{name}]:{plan.port}" for name in names))


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
