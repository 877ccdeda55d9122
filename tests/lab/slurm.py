"""Slurm on hosts of the lab: the controller on the first one, which is the login node."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab import launching
from tests.lab.lab import Lab, LabFactory, need
from tests.lab.lab.files import ALICE
from tests.lab.lab.host import Host
from tests.lab.launching import Controller, Launcher, Result
from tests.lab.waiting import PATIENCE, wait_until

DAEMONS = {name: f"/usr/sbin/{name}" for name in ("munged", "slurmctld", "slurmd")}
ROOT = launching.ROOT
PYTHON = sys.executable
RUNNER = (PYTHON, "-m", "runner")
LOGIN = "login"
COMPUTE = ("node1", "node2", "node3")
ETC = "/etc/slurm"
RUN = "/run/slurm"
START_S = 20

HPC = "cluster=hpc"
EXCLUSIVE = 'cluster.slurm.extra=["--exclusive"]'

CONFIG = """\
ClusterName=lab
SlurmctldHost={login}({address})
AuthType=auth/munge
SlurmUser=root
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.pid
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
SlurmdTimeout=30
KillWait=8
MinJobAge=300
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=bf_interval=5,sched_min_interval=200000
{lines}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 PriorityTier=10 State=UP
PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=6 State=UP
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=100 PreemptMode=OFF State=UP
"""


BY_LOOK = (
    "ProctrackType=proctrack/linuxproc",
    "TaskPlugin=task/none",
    "SelectTypeParameters=CR_Core",
    "JobAcctGatherType=jobacct_gather/none",
)
"""A site that finds the processes of a job by their parents."""

BY_CGROUP = (
    "ProctrackType=proctrack/cgroup",
    "TaskPlugin=task/cgroup",
    "SelectTypeParameters=CR_Core_Memory",
    "JobAcctGatherType=jobacct_gather/linux",
    "JobAcctGatherFrequency=task=2",
)
"""One that has cgroups."""

CGROUP_CONFIG = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
"""


def missing() -> str:
    """Return what Slurm needs and this machine lacks, "" for nothing."""
    absent = [path for path in DAEMONS.values() if not Path(path).exists()]
    return f"Slurm needs {', '.join(absent)}" if absent else ""


class OnLogin(Controller):
    """A controller on the login node."""

    def __init__(self, login: Host, argv: Sequence[str], cwd: Path) -> None:
        self.cwd = cwd
        self.started_at = time.monotonic()
        self._out, self._err = (tempfile.TemporaryFile("w+b") for _ in range(2))  # noqa: SIM115
        out, err = self._out.fileno(), self._err.fileno()
        self.process = login.popen(argv, stdout=out, stderr=err)  # type: ignore[assignment]


class HpcLauncher(Launcher):
    """A user on the login node: `cluster=hpc` is its Slurm."""

    def __init__(self, folder: Path, slurm: Slurm, inside: str = "") -> None:
        """`inside` is where the login node has the folder, if that is elsewhere."""
        super().__init__(folder)
        self._inside = inside or str(folder)
        self._slurm = slurm
        self.env = {"PYTHONPATH": str(ROOT)}
        cluster = {"defaults": ["base"], "scheduler": "slurm", "nodes": 2, "python": PYTHON}
        (self.conf / "cluster/hpc.yaml").write_text(yaml.safe_dump(cluster))
        os.chown(folder, ALICE, ALICE)

    def start(self, *overrides: str, env: Mapping[str, str] | None = None) -> Controller:
        variables = {**self.env, **(env or {})}
        script = ["/bin/sh", "-c", f'cd {self._inside} && exec env "$@"', "sh"]
        words = [*(f"{name}={value}" for name, value in variables.items()), *RUNNER, *overrides]
        controller = OnLogin(self._slurm.login, [*script, *words], self.folder)
        self._controllers.append(controller)
        return controller


class Slurm:
    """A small Slurm cluster: a login node with the controller, compute nodes, and one home."""

    def __init__(self, lab: Lab, folder: Path, *, lines: Sequence[str] = BY_LOOK) -> None:
        self.lab = lab
        self.login = lab[LOGIN]
        self.nodes = {name: host for name, host in lab.hosts.items() if name != LOGIN}
        self._etc = folder / "slurm"
        self._processes: dict[tuple[str, str], subprocess.Popen[str]] = {}
        self._etc.mkdir()
        self._etc.chmod(0o755)
        key = self._etc / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        nodes = (
            f"NodeName={name} NodeAddr={host.address} CPUs=8 RealMemory=4000 State=UNKNOWN"
            for name, host in self.nodes.items()
        )
        text = CONFIG.format(
            login=LOGIN,
            address=self.login.address,
            run=RUN,
            lines="\n".join(lines),
            nodes="\n".join(nodes),
        )
        (self._etc / "slurm.conf").write_text(text)
        if lines == BY_CGROUP:
            (self._etc / "cgroup.conf").write_text(CGROUP_CONFIG)

    def start(self) -> None:
        self.start_daemons()
        self._wait_until_idle()

    def start_daemons(self) -> None:
        """Start those that do not run."""
        for host in self.lab.hosts.values():
            self._start_munge(host)
        self._start(self.login, "slurmctld", "-D")
        for name, host in self.nodes.items():
            self._start(host, "slurmd", "-D", "-N", name)

    def _wait_until_idle(self) -> None:
        def is_idle() -> bool:
            self.sh("scontrol update nodename=ALL state=resume", user="root", check=False)
            states = self.sh("sinfo -h -N -p main -o %t", check=False).split()
            return len(states) == len(self.nodes) and {*states} == {"idle"} and not self.jobs()

        wait_until(is_idle, "all nodes to be idle", 60, detail=self._describe)

    def _start_munge(self, host: Host) -> None:
        if not self._runs(host, "munged"):
            prepare = f"mount --bind {self._etc} {ETC}; mkdir -p /run/munge {RUN}/state {RUN}/spool"
            host.sh(f"{prepare}; cp {ETC}/munge.key {RUN}/; chmod 755 /run/munge", user="root")
        places = [f"--key-file={RUN}/munge.key", "--pid-file=/run/munge/pid"]
        places += ["--log-file=/run/munge/log", "--seed-file=/run/munge/seed"]
        self._start(host, "munged", "--foreground", "--force", *places)

        def answers() -> bool:
            return "STATUS" in host.sh("munge -n | unmunge", check=False)

        wait_until(answers, f"munge on {host.name}", START_S)

    def kill(self, host: Host, daemon: str) -> None:
        process = self._processes.pop((host.name, daemon))
        process.kill()
        process.wait(START_S * PATIENCE)

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(START_S * PATIENCE)

    def job(self, run_id: str) -> dict[str, str]:
        """The job of a run, the newest by that name."""
        jobs = self.sh(f"scontrol --oneliner show job | grep 'JobName={run_id} '").splitlines()
        return dict(word.partition("=")[::2] for word in jobs[-1].split())

    def ended_job(self, run_id: str) -> dict[str, str]:
        on = ("RUNNING", "COMPLETING", "PENDING")
        wait_until(lambda: self.job(run_id)["JobState"] not in on, "the job's script to end")
        return self.job(run_id)

    def start_again(self, run_id: str) -> None:
        """Let a job start that Slurm has requeued, in a few seconds instead of two minutes.

        A node refuses a job of the very second in which it ended the one before. A job that has
        started by now is left alone, by Slurm.
        """
        job_id = self.job(run_id)["JobId"]
        self.sh(f"scontrol update jobid={job_id} starttime=now+3seconds", check=False)

    def save_state(self, run_id: str) -> None:
        """Wait until the controller would still know of the job of a run if it were killed.

        It saves its state some seconds after a change. What it lost it would call by the same id
        again, and a node that has the one refuses the other.
        """
        mark = secrets.token_hex()
        job_id = self.job(run_id)["JobId"]
        self.sh(f"scontrol update jobid={job_id} comment={mark}")
        saved = f"grep -q {mark} {RUN}/state/job_state && echo yes"
        wait_until(lambda: self.sh(saved, user="root", check=False), "the state to be saved")

    def clear(self) -> None:
        """Cancel all jobs, and bring back what was broken."""
        self.lab.repair()
        self.start_daemons()
        self.sh("scancel --user=alice; scancel --user=root", user="root", check=False)
        self._wait_until_idle()

    def _runs(self, host: Host, daemon: str) -> bool:
        process = self._processes.get((host.name, daemon))
        return process is not None and process.poll() is None

    def _describe(self) -> str:
        last = f"tail -n 5 {self._log(self.login, 'slurmctld')}"
        return self.sh(f"sinfo -N -l; squeue -a; {last}", user="root", check=False)

    def _log(self, host: Host, daemon: str) -> Path:
        return self._etc / f"{daemon}-{host.name}.log"

    def jobs(self, columns: str = "%j|%T") -> list[str]:
        return self.sh(f"squeue -h -o '{columns}'").splitlines()

    def sh(self, command: str, **options: Any) -> str:
        return self.login.sh(command, **options)

    def _start(self, host: Host, daemon: str, *flags: str) -> None:
        if self._runs(host, daemon):
            return
        script = f'exec "$@" >>{self._log(host, daemon)} 2>&1'
        argv = ["/bin/sh", "-c", script, "sh", DAEMONS[daemon], *flags]
        self._processes[host.name, daemon] = host.popen(argv, user="root")


@contextlib.contextmanager
def slurm_lab(
    make: LabFactory, folder: Path, nodes: Sequence[str] = COMPUTE, **options: Any
) -> Iterator[Slurm]:
    """Make a lab of a login node and compute nodes with one home, and start Slurm on it."""
    need(missing())
    with make(names=[LOGIN, *nodes], shared_home=True) as lab:
        slurm = Slurm(lab, folder, **options)
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.close()


def begun(hpc: Launcher, words: str, *overrides: str) -> Controller:
    """Launch a run, and wait until all its ranks have printed that they began."""
    controller = hpc.start(HPC, *hpc.rank_overrides("print=began", *words.split()), *overrides)
    if "detach=true" not in overrides:
        controller.until_printed("began", 2)
        return controller
    assert controller.wait().code == 0
    printed = controller.folder / "job.out"
    wait_until(
        lambda: printed.exists() and printed.read_text().count("began") > 1,
        "the ranks to begin",
        30,
    )
    return controller


def ended(hpc: Launcher, verb: str, run_id: str) -> Result:
    return hpc(verb, "--run", run_id)
