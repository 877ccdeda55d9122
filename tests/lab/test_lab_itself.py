"""The lab itself: what every other test on real hosts relies on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.lab.lab import LOGIN_USER, Host, Lab, LabError, LabFactory
from tests.lab.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

REPOSITORY = Path(__file__).parents[2]


def ssh_options(lab: Lab, key: Path) -> list[str]:
    """Returns flags for ssh that keep the machine's own settings out."""
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": "5",
        "IdentitiesOnly": "yes",
        "IdentityFile": key,
        "UserKnownHostsFile": lab.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
    }
    return ["-F", "/dev/null", *(f"-o{name}={value}" for name, value in settings.items())]


def ssh(
    lab: Lab,
    host: Host,
    command: str,
    *options: str,
    user: str = LOGIN_USER,
    key: Path | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Runs a command on a host with the system's own ssh."""
    flags = [*ssh_options(lab, key or lab.key), "-p", str(host.port), *options]
    return subprocess.run(
        ["ssh", *flags, f"{user}@{host.address}", command],
        check=False,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=20,
    )


def answers(host: Host, within_s: float = 5) -> bool:
    """Tells whether a host answers a ping of this machine."""
    ping = ["ping", "-q", "-c", "1", "-W", str(within_s), host.address]
    return subprocess.run(ping, check=False, capture_output=True).returncode == 0


def round_trip_ms(host: Host) -> float:
    """Returns the fastest of three pings."""
    ping = ["ping", "-q", "-c", "3", "-i", "0.05", host.address]
    answer = subprocess.run(ping, check=True, capture_output=True, text=True).stdout
    return float(answer.rpartition(" = ")[2].split("/")[0])


@pytest.mark.parametrize("user", ["root", "alice"])
def test_ssh_lets_both_accounts_in_with_the_labs_key(lab: Lab, user: str) -> None:
    """A host answers with its own name, as the user asked for, in that user's home."""
    for name, host in lab.hosts.items():
        done = ssh(lab, host, "hostname; id -un; pwd; echo $SSH_CONNECTION", user=user)

        assert (done.returncode, done.stderr) == (0, "")
        hostname, account, home, connection = done.stdout.splitlines()
        assert (hostname, account, home) == (name, user, f"/home/{user}")
        assert connection.split()[0::2] == [lab.address, host.address]


def test_the_wrong_key_opens_nothing(lab: Lab) -> None:
    """It is refused, and no password is asked for."""
    done = ssh(lab, lab["node1"], "true", key=lab.wrong_key)

    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


@pytest.mark.parametrize("user", ["root", "alice"])
def test_hosts_see_this_python_and_the_repository(lab: Lab, user: str) -> None:
    """Although /tmp and /root are covered, and /root is closed to alice on the machine itself."""
    host = lab["node1"]

    assert host.sh(f"{sys.executable} -c 'import yaml; print(42)'", user=user) == "42\n"
    assert host.sh(f"test -r {REPOSITORY}/pyproject.toml && echo yes", user=user) == "yes\n"


def test_hosts_see_pytests_folder_at_the_same_path(lab: Lab, tmp_path: Path) -> None:
    """What a test writes there is there on every host."""
    (tmp_path / "note").write_text("hello")

    assert lab["node2"].read(f"{tmp_path}/note") == "hello"


@pytest.mark.parametrize("folder", ["/home/root", "/tmp", "/run", "/dev/shm", "/var/log", "/root"])
def test_what_a_host_keeps_to_itself(lab: Lab, folder: str) -> None:
    """A file written there is seen neither by another host nor by the machine."""
    path = f"{folder}/only-here"
    lab["node1"].write(path, "mine", user="root")

    assert lab["node1"].read(path, user="root") == "mine"
    assert not Path(path).exists()
    with pytest.raises(LabError, match="No such file"):
        lab["node2"].read(path, user="root")
    lab["node1"].sh(f"rm {path}", user="root")


def test_write_and_read_go_by_the_users_home_and_rights(lab: Lab) -> None:
    """Folders are made, modes set, owners right, and the controller finds the file, too."""
    host = lab["node1"]
    host.write("~/deep/er/file", "x", mode=0o640, user="alice")

    path = host.home / "deep/er/file"
    assert (path.read_text(), path.stat().st_mode & 0o777, path.stat().st_uid) == ("x", 0o640, 2001)
    with pytest.raises(LabError, match="Permission denied"):
        host.read("/home/root/.profile", user="alice")


def test_a_hosts_network_is_its_own(lab: Lab) -> None:
    """It has a loopback and one eth0, all names resolve at once, and hosts reach each other."""
    host = lab["node1"]

    assert host.sh("ls /sys/class/net").split() == ["eth0", "lo"]
    assert f"inet {host.address}/24" in host.sh("ip address show dev eth0")
    assert host.sh("ip route show default") == ""
    for other in lab.hosts.values():
        assert host.sh(f"getent hosts {other.name}").split() == [other.address, other.name]
    host.sh("ping -q -c 1 -W 1 node4")


def test_an_unplugged_host_is_silent_until_plugged_in(lab: Lab) -> None:
    """It notices the missing carrier, and lives on."""
    host = lab["node2"]

    host.unplug()
    assert not answers(host, within_s=0.3)
    assert host.sh("cat /sys/class/net/eth0/carrier") == "0\n"
    host.plug()
    assert answers(host)
    assert ssh(lab, host, "hostname").stdout == "node2\n"


def test_a_power_cut_tells_nobody(lab: Lab) -> None:
    """An open connection just falls silent; after the reboot the other end learns the truth."""
    host = lab["node3"]
    sleeper = host.popen(["sleep", "600"])
    with socket.create_connection((host.address, host.port), timeout=5) as connection:
        assert connection.recv(4) == b"SSH-"
        connection.recv(1000)
        host.power_off()
        assert sleeper.wait(5) == -signal.SIGKILL
        assert not host.is_on
        assert host.processes() == []
        with pytest.raises(LabError, match="node3 is off"):
            host.sh("true")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)

        host.power_on()
        connection.settimeout(5)
        connection.send(b"still there?")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_reboot_keeps_the_disk_and_nothing_else(lab: Lab) -> None:
    """The home is there even while the power is off; /tmp is empty afterwards."""
    host = lab["node3"]
    host.write("kept", "on disk")
    host.write("/tmp/lost", "in memory")
    host.power_off()
    host.power_off()
    assert (host.home / "kept").read_text() == "on disk"
    host.power_on()
    host.power_on()

    assert host.read("kept") == "on disk"
    assert host.sh("ls /tmp/lost || echo none", check=False) == "none\n"
    assert ssh(lab, host, "hostname").stdout == "node3\n"


def test_a_host_whose_first_process_dies_is_off(lab: Lab) -> None:
    """It can be switched on again."""
    host = lab["node3"]
    host.kill(1, signal.SIGTERM)
    wait_until(lambda: not host.is_on, "sshd to end")
    host.power_on()

    assert answers(host)


def test_a_slow_host_answers_late(lab: Lab) -> None:
    """A round trip takes as much longer as was said, and as little as before in the end."""
    host = lab["node4"]

    host.degrade_network(delay_ms=60)
    assert 60 <= round_trip_ms(host) < 160
    host.degrade_network(loss_pct=100)
    assert not answers(host, within_s=0.3)
    host.restore_network()
    assert round_trip_ms(host) < 50


def test_a_slow_line_changes_no_byte(lab: Lab) -> None:
    """Large frames with unfinished checksums pass it whole, both ways, also with losses."""
    host = lab["node4"]
    text = "0123456789abcdef" * (1 << 18)
    host.degrade_network(delay_ms=2, loss_pct=0.1)

    there = ssh(lab, host, "sha256sum", stdin=text).stdout
    back = ssh(lab, host, "yes 0123456789abcdef | head -n 250000").stdout

    assert there.split()[0] == hashlib.sha256(text.encode()).hexdigest()
    assert back == "0123456789abcdef\n" * 250000


def test_a_full_disk_is_full_for_one_host_only(lab: Lab) -> None:
    """`df` says so, writing fails, and both ends with `free_disk`."""
    host = lab["node1"]
    host.fill_disk()

    assert host.sh("df --output=avail ~").split() == ["Avail", "0"]
    with pytest.raises(LabError, match="No space left on device"):
        host.sh("head -c 1 /dev/zero > file")
    lab["node2"].sh("head -c 1 /dev/zero > file")
    host.free_disk()
    host.sh("head -c 1 /dev/zero > file")


def test_hosts_with_a_shared_home_see_the_same_files(lab_factory: LabFactory) -> None:
    """As with NFS; a host left out keeps its own."""
    lab = lab_factory(n=3, shared_home=["node1", "node2"], home_mb=16)
    lab["node1"].write("note", "for all")

    assert lab["node2"].read("note") == "for all"
    assert lab["node3"].sh("ls") == ""
    assert lab["node1"].sh("df --output=size -m ~").split() == ["1M-blocks", "16"]


def test_isolated_hosts_are_reached_through_the_bastion_only(lab_factory: LabFactory) -> None:
    """The bastion has a leg in both networks; the controller has none in theirs."""
    lab = lab_factory(names=["bastion", "in1", "in2"], isolated=["in1", "in2"])
    bastion, inner = lab["bastion"], lab["in1"]
    hop = f"ssh {' '.join(ssh_options(lab, lab.key))} -W %h:%p {LOGIN_USER}@{bastion.address}"

    assert not answers(inner, within_s=0.3)
    assert ssh(lab, inner, "hostname", f"-oProxyCommand={hop}").stdout == "in1\n"
    assert bastion.sh("ls /sys/class/net").split() == ["eth0", "eth1", "lo"]
    inner.sh("ping -q -c 1 -W 1 in2")
    with pytest.raises(LabError):
        inner.sh(f"ping -q -c 1 -W 1 {lab.address}")


def test_processes_are_found_by_their_mark(lab: Lab) -> None:
    """In the environment as in the arguments, on the right host, and never zombies."""
    host = lab["node1"]
    script = "true & echo forked; read line"
    parent = host.popen(
        ["sh", "-c", script, "mark-1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    sleeper = host.popen(["env", "RUN_ID=mark-1", "sleep", "600"], user="alice")
    with parent, sleeper:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        wanted = {f"sh -c {script} mark-1", "sleep 600"}
        wait_until(
            lambda: (
                {process.cmdline for process in host.processes("mark-1")} == wanted
                and len(host.processes("mark-1")) == 2
            ),
            "the zombie to be one",
        )
        assert lab["node2"].processes("mark-1") == []
        for process in host.processes("mark-1"):
            assert process.ppid == 0
            assert process.pid in host.pids()
            assert f"Pid:\t{process.pid}\n" in host.read(f"/proc/{process.pid}/status")
            host.kill(process.pid, signal.SIGTERM)
    assert (parent.returncode, sleeper.returncode) == (-signal.SIGTERM, -signal.SIGTERM)
    assert host.processes("mark-1") == []


def test_signals_sent_through_popen_reach_the_program(lab: Lab) -> None:
    """And not only the nsenter that started it."""
    program = lab["node1"].popen(["sh", "-c", "pwd; exec sleep 600"], stdout=subprocess.PIPE)
    assert program.stdout is not None
    with program.stdout as said:
        assert said.readline() == "/home/alice\n"
    commands = [process.cmdline for process in lab["node1"].leftovers()]
    assert commands in (["sh -c pwd; exec sleep 600"], ["sleep 600"])
    program.terminate()

    assert program.wait(5) == -signal.SIGTERM
    assert lab["node1"].leftovers() == []


def test_a_crash_of_a_supervisor_is_seen(lab: Lab) -> None:
    """By what it wrote to its own log; those that say nothing are well."""
    run = "~/.runner/runs/1122-0900-rank-abcd"
    lab["node1"].write(f"{run}/node1/supervisor.log", "")
    lab["node2"].write(f"{run}/node2/supervisor.log", "Traceback")
    assert lab.crashes() == {"node2": ["Traceback"]}
    lab.reset_homes()
    assert lab.crashes() == {}


def test_homes_are_made_again(lab: Lab) -> None:
    """Nothing that was put there stays, and what was there at first is there again."""
    host = lab["node1"]
    everything = "find . -printf '%P %u %m %s\\n' | sort"
    before = {user: host.sh(everything, user=user) for user in ("root", "alice")}
    for user in before:
        script = (
            "mkdir -m 500 frozen; ln -s frozen link; ln -s gone loose; rm .profile; chmod 750 ."
        )
        host.sh(f"{script}; echo secret > .file", user=user)
        assert "frozen" in host.sh(everything, user=user)
    lab.reset_homes()
    assert {user: host.sh(everything, user=user) for user in before} == before


def test_clear_and_repair_undo_everything(lab: Lab) -> None:
    """Whatever a test broke, the next one finds a sound lab."""
    off, cut, slow = (lab[f"node{i}"] for i in (1, 2, 3))
    off.power_off()
    cut.unplug()
    cut.fill_disk()
    slow.degrade_network(loss_pct=100)
    slow.change_host_key()
    slow.sh("setsid sleep 600 >/dev/null 2>&1 &")
    slow.sh("mkdir -p /dev/shm/folder && touch /dev/shm/folder/go /dev/shm/go")
    assert list(lab.leftovers()) == ["node3"]

    lab.repair()
    lab.kill_all()

    assert lab.leftovers() == {}
    assert slow.sh("ls /dev/shm") == ""
    assert [ssh(lab, host, "echo ok > ok").returncode for host in lab.hosts.values()] == [0] * 4


def test_a_changed_host_key_is_noticed(lab: Lab) -> None:
    """Until the old one is back, ssh refuses to connect."""
    host = lab["node1"]

    host.change_host_key()
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in ssh(lab, host, "true").stderr
    host.change_host_key()
    host.restore_host_key()
    assert ssh(lab, host, "true").returncode == 0


def test_options_can_differ_between_hosts(lab_factory: LabFactory) -> None:
    """Own name, shell, port, banners and sshd options; hosts not named have the default."""
    lab = lab_factory(
        n=3,
        own_name={"node1": "loopback", "node2": "none"},
        login_shell={"node1": "/usr/bin/fish"},
        rc_banner={"node1": True, "node2": True},
        port={"node2": 2222},
        sshd_options={"node3": ["PermitRootLogin no"]},
    )
    own = {
        host.name: host.sh("getent ahosts $(hostname)", check=False) for host in lab.hosts.values()
    }
    said = {
        host.name: ssh(lab, host, "echo $0 $version", user=user)
        for host, user in zip(lab.hosts.values(), ("alice", "alice", "root"), strict=True)
    }

    assert own["node1"].startswith("127.0.1.1 ")
    assert own["node2"] == ""
    assert own["node3"].startswith(lab["node3"].address)
    assert said["node1"].stdout.splitlines()[0] == "*** node1: for authorised use only ***"
    assert "have a nice day3." in said["node1"].stdout  # fish knows its version, and no $0
    assert "have a nice daybash" in said["node2"].stdout
    assert "node2 belongs to the lab" in said["node2"].stderr
    assert said["node3"].returncode == 255
    assert ssh(lab, lab["node3"], "echo $0", user="alice").stdout == "bash\n"


def test_hosts_may_have_several_interfaces(lab_factory: LabFactory) -> None:
    """With `nets=2` they share a second network, of which the controller is no part."""
    lab = lab_factory(n=2, nets=2)
    second = lab["node2"].sh("ip -4 -o address show dev eth1").split()[3].removesuffix("/24")

    assert second != lab["node2"].address
    lab["node1"].sh(f"ping -q -c 1 -W 1 {second}")


def test_a_host_that_cannot_boot_says_why(lab_factory: LabFactory) -> None:
    """The error has sshd's own words, it comes at once, and the lab is gone."""
    start = time.monotonic()
    with pytest.raises(
        LabError, match=r"(?s)node1 did not boot.*Bad configuration option: Nonsense"
    ):
        lab_factory(n=1, sshd_options=["Nonsense yes"])

    assert time.monotonic() - start < 5


def test_options_for_unknown_hosts_are_refused(lab_factory: LabFactory) -> None:
    """A misspelt name in a test must not make it test nothing."""
    with pytest.raises(LabError, match="port: no host is called nodeX, only node1"):
        lab_factory(n=1, port={"nodeX": 2222})
    with pytest.raises(LabError, match="isolated: no host is called nodeX"):
        lab_factory(n=1, isolated=["nodeX"])


def test_cluster_is_what_a_user_would_write(lab: Lab, tmp_path: Path) -> None:
    """Nodes in the order asked for; overrides reach into mappings."""
    path = lab.write_cluster(
        tmp_path, names=["node2", "node1"], ssh={"user": "root"}, nodes={"node1": {"gpus": 0}}
    )

    assert path == tmp_path / "cluster/lab.yaml"
    cluster = yaml.safe_load(path.read_text())
    assert list(cluster["nodes"].items()) == [
        ("node2", {"host": lab["node2"].address}),
        ("node1", {"host": lab["node1"].address, "gpus": 0}),
    ]
    assert (cluster["defaults"], cluster["python"]) == (["base"], sys.executable)
    assert cluster["ssh"] == {
        "user": "root",
        "key": str(lab.key),
        "known_hosts": str(lab.known_hosts),
        "config": "/dev/null",
    }


def test_two_labs_live_side_by_side(lab: Lab, lab_factory: LabFactory) -> None:
    """Hosts of the same names, other addresses, and the end of one is not felt by the other."""
    other = lab_factory(n=2)

    assert {host.address for host in other.hosts.values()}.isdisjoint(
        host.address for host in lab.hosts.values()
    )
    assert ssh(other, other["node1"], "hostname").stdout == "node1\n"
    with pytest.raises(LabError):
        other["node1"].sh(f"ping -q -c 1 -W 1 {lab['node1'].address}")
    other.close()
    assert not answers(other["node1"], within_s=0.3)
    assert answers(lab["node1"])


def test_a_lab_outlives_the_thread_that_made_it(lab_factory: LabFactory) -> None:
    """It is bound to the process (a parent-death signal would be bound to the thread)."""
    labs: list[Lab] = []
    maker = threading.Thread(target=lambda: labs.append(lab_factory(n=1)))
    maker.start()
    maker.join()

    assert ssh(labs[0], labs[0]["node1"], "hostname").stdout == "node1\n"


def namespaces(pids: Iterable[str]) -> set[str]:
    """Returns the network and PID namespaces of some processes."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or is a container's guarded PID 1
            found |= {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in ("net", "pid")}
    return found


def namespaces_in_use() -> set[str]:
    """Returns the namespaces that any process of this machine is in."""
    return namespaces(path.name for path in Path("/proc").glob("[0-9]*"))


MADE_TO_BE_KILLED = """
import json, signal
from tests.lab.lab import make_lab
lab = make_lab(n=2)
sleeper = lab["node1"].popen(["sleep", "600"])
lab["node2"].degrade_network(delay_ms=1)
pids = [lab["node1"]._anchor.pid, *(host._init_pid for host in lab.hosts.values())]
print(json.dumps([lab.address, str(lab.key.parent), pids]), flush=True)
signal.pause()
"""


@pytest.mark.usefixtures("lab_factory")
def test_nothing_is_left_of_a_lab_whose_maker_is_killed() -> None:
    """No process, no namespace, no address and no file, though nobody cleans up."""
    program = [sys.executable, "-c", MADE_TO_BE_KILLED]
    with subprocess.Popen(program, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        address, folder, pids = json.loads(maker.stdout.readline())
        held = namespaces(pids)
        assert len(held) == 6
        assert held <= namespaces_in_use()
        maker.kill()

    addresses = ["ip", "-4", "address", "show"]
    wait_until(lambda: held.isdisjoint(namespaces_in_use()), "the namespaces to be empty")
    wait_until(lambda: not Path(folder).exists(), "the lab's folder to be removed")
    wait_until(
        lambda: f" {address}/" not in subprocess.check_output(addresses, text=True),
        "the controller's leg to be removed",
    )


def test_a_closed_lab_leaves_nothing(lab_factory: LabFactory) -> None:
    """It is gone when `close` returns, with all that ran in it; closing twice is harmless."""
    lab = lab_factory(n=2)
    sleeper = lab["node1"].popen(["sleep", "600"])
    lab["node2"].degrade_network(delay_ms=1)
    held = namespaces(str(host._init_pid) for host in lab.hosts.values())
    lab.close()
    lab.close()

    assert held.isdisjoint(namespaces_in_use())
    assert sleeper.wait(5) == -signal.SIGKILL
    assert not lab.key.parent.exists()
