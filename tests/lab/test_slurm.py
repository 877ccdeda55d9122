"""Runs that a real Slurm starts: the same words, logs, verdicts and proofs as over SSH."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.launching import Launcher
from tests.lab.slurm import EXCLUSIVE, HPC, PYTHON, ROOT, Slurm, begun, ended
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slurm

ALL_NODES = "cluster.nodes=3"
SECRET = "tell-nobody"


@pytest.mark.smoke
@pytest.mark.promise(5)
def test_run_is_as_over_ssh(slurm: Slurm, hpc: Launcher) -> None:
    """Compute nodes are never logged in to; the job ends with the run's own exit code."""
    done = hpc.run_ranks("print=hello env=RANK sleep=3", HPC, "sample_s=1")
    assert done.code == 0, done
    for rank, node in enumerate(("node1", "node2")):
        assert done.log(node, rank) == f"hello\nRANK={rank}\n"
        assert "Accepted" not in slurm.nodes[node].console.read_text()
    assert done.result["state"] == "succeeded"
    job = slurm.ended_job(done.result["run_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
    files = done.folder.glob("hosts/*/attempt_*/samples.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert {json.loads(line)["node"] for line in lines} == {"node1", "node2"}


def test_first_failure_ends_all(slurm: Slurm, hpc: Launcher) -> None:
    """The code of the rank that failed first counts, not what srun and torchrun make of it."""
    hpc.entry = "torchrun"
    done = hpc.run_ranks("fail=1:7 sleep=300", HPC)
    assert done.code == 1, done
    assert "first failure: rank 1 on node2 exited with 7" in done.err
    job = slurm.ended_job(done.result["run_id"])
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "1:0")


def test_success_of_the_node_that_decides_is_that_of_the_job(slurm: Slurm, hpc: Launcher) -> None:
    """The other one serves, is stopped then, and has not failed."""
    up = "until [ -e ~/up ]; do sleep 0.1; done"
    serve = "touch ~/up; exec sleep 300"
    program = f'task.command=[bash, -c, "if [ $NODE_RANK = 0 ]; then {up}; else {serve}; fi"]'
    done = hpc(HPC, program, "task.entry=plain", "task.decides=master")
    assert done.code == 0, done
    assert "node2  rank 1 was stopped" in done.err
    job = slurm.ended_job(done.result["run_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")


@pytest.mark.smoke
@pytest.mark.promise(2)
def test_stop_is_proven(slurm: Slurm, hpc: Launcher) -> None:
    """Deaf ranks with daemons are gone, and so is the job."""
    started = begun(hpc, "deaf daemon sleep=300", "detach=true", "grace_s=2")
    stopped = ended(hpc, "stop", started.run_id)
    assert stopped.code == 0, stopped
    assert "no process is left" in stopped.out
    assert not slurm.jobs()
    verdict = ended(hpc, "why", started.run_id)
    assert "stop requested by" in verdict.out, verdict


@pytest.mark.promise(7)
def test_ctrl_c_leaves_no_job_and_no_secret(slurm: Slurm, hpc: Launcher) -> None:
    """Secrets are in no argument of Slurm, in no script, and after the end in no record."""
    hpc.env["TOKEN"] = SECRET
    started = begun(hpc, "env=TOKEN sleep=300", "cluster.secrets=[TOKEN]")
    run_id = started.run_id
    started.until_printed(f"TOKEN={SECRET}", 2)
    for host in slurm.lab.hosts.values():
        assert SECRET not in " ".join(p.cmdline for p in host.processes())
    assert SECRET not in slurm.sh("scontrol show job; cat .runner/runs/*/.slurm/batch.sh")
    started.send()
    assert started.wait().code == 130
    slurm.ended_job(run_id)
    assert not slurm.jobs()
    found = slurm.sh(f"grep -rl {SECRET} .runner/runs/{run_id} || true").split()
    assert all(re.search(r"/rank_\d\.out$", path) for path in found), found


@pytest.mark.smoke
def test_scancel_is_the_verdict(slurm: Slurm, hpc: Launcher) -> None:
    """The supervisors record it at once, and Slurm says why."""
    started = begun(hpc, "sleep=300")
    slurm.sh(f"scancel --name={started.run_id}")
    done = started.wait()
    assert done.code == 1, done
    assert "first failure: ended by Slurm: it was cancelled" in done.err
    assert done.result["state"] == "stopped"


@pytest.mark.promise(10)
def test_controllers_come_and_go(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """Killing the launch, and slurmctld, changes nothing: who knows the id has all verbs."""
    started = begun(hpc, f"count=5 wait={steps}/go print=end")
    run_id = started.run_id
    started.process.kill()
    slurm.save_state(run_id)
    slurm.kill(slurm.login, "slurmctld")
    other = hpc.at_another_machine("desk")
    slurm.write_cluster(other.folder / "conf")
    where = ("--run", run_id, "--cluster", "hpc")
    follower = other.start("attach", *where)
    follower.until_printed("line 4", 2)
    slurm.start_controller()
    stacks = other("stacks", *where)
    assert "ranks 0-1 on node[1-2]" in stacks.out, stacks
    listed = other("ps", "--cluster", "hpc")
    assert re.search(rf"{run_id} .*running .*node\[1-2\]", listed.out), listed
    (steps / "go").touch()
    done = follower.wait()
    assert done.code == 0, done
    assert done.out.count("] end") == 2
    assert other("pull", "--run", run_id).code == 0
    assert "succeeded" in other("why", "--run", run_id).out


def test_pending_job_is_shown_and_cancelled(slurm: Slurm, hpc: Launcher) -> None:
    """Slurm's reason is shown; Ctrl-C, `stop` and scancel leave no job and no secret behind."""
    hpc.env["TOKEN"] = SECRET
    first = begun(hpc, "sleep=300", "detach=true", ALL_NODES, EXCLUSIVE)
    words = (HPC, *hpc.rank_overrides("print=hi"), EXCLUSIVE, "cluster.secrets=[TOKEN]")
    waiting = hpc.start(*words)
    waiting.until(lambda: "is pending (Resources)" in waiting.err, "a reason")
    listed = hpc("ps")
    assert re.search(rf"{waiting.run_id} .*pending \(\w+\)", listed.out), listed
    asked = ended(hpc, "logs", waiting.run_id)
    assert (asked.code, "has not begun" in asked.err) == (3, True), asked
    waiting.send()
    interrupted = waiting.wait()
    assert interrupted.code == 130, interrupted
    assert "its job is cancelled" in interrupted.err
    detached = hpc(*words, "detach=true")
    cancelled = ended(hpc, "stop", detached.folder.name)
    assert cancelled.code == 0, cancelled
    third = hpc.start(*words)
    third.until(lambda: "is pending" in third.err, "the job to wait")
    slurm.sh(f"scancel --name={third.run_id}")
    done = third.wait()
    assert (done.code, "it was cancelled" in done.err) == (3, True), done
    assert slurm.jobs("%j") == [first.run_id]
    assert not slurm.sh(f"grep -rl {SECRET} .runner/runs || true")


SAVES = """\
import os, signal, sys, time
stop = []
signal.signal(signal.SIGUSR2, lambda *_: stop.append(1))
path = os.environ["STATE"] + os.environ["RANK"]
begin = int(open(path).read()) if os.path.exists(path) else 0
print("begin", begin, "of", os.environ["TOKEN"], flush=True)
while not begin:
    time.sleep(0.1)
    if stop:
        open(path, "w").write("7")
        sys.exit(0)
"""


def test_run_goes_on_after_its_time_limit(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """Ranks alone get the signal, the job starts again, and the run goes on as another attempt."""
    (hpc.folder / "train.py").write_text(SAVES)
    limit = ["time=0:20:00", "signal_before=60", "signal=SIGUSR2", "requeue=true"]
    task = ["task.script=train.py", "task.entry=plain", f"task.env.STATE={steps}/"]
    hpc.env["TOKEN"] = SECRET
    slurm_words = (f"cluster.slurm.{word}" for word in limit)
    started = hpc.start(HPC, "cluster.secrets=[TOKEN]", *task, *slurm_words)
    started.until_printed("begin 0", 2)
    job_id = slurm.job(started.run_id)["JobId"]
    slurm.sh(f"scancel --batch --signal=USR1 {job_id}")  # as Slurm does before the limit
    started.until(lambda: "pending (BeginTime)" in started.err, "the job to wait")
    assert "SIGUSR2" in started.err
    slurm.start_again(started.run_id)
    done = started.wait()
    assert done.code == 0, done
    assert done.out.count(f"begin 7 of {SECRET}\n") == 2
    assert done.result["past_attempts"][0]["nodes"] == ["node1", "node2"]


def test_preempted_job_starts_again(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """As another attempt of the same run, if it is to; else that is the verdict."""
    low = ("cluster.slurm.partition=low", EXCLUSIVE, ALL_NODES)
    take_all = "sbatch -p high -N3 --exclusive -t 1 --wrap 'sleep 1' -o /dev/null"
    does = hpc.rank_overrides("print=began", f"touch={steps}/RANK", f"wait={steps}/go")
    started = hpc.start(HPC, *does, *low, "cluster.slurm.requeue=true")
    started.until_printed("began", 3)
    slurm.sh(take_all)
    started.until(lambda: "(BeginTime)" in started.err, "the job to wait")
    (steps / "go").touch()
    slurm.start_again(started.run_id)
    done = started.wait()
    assert done.code == 0, done
    assert len(done.result["past_attempts"]) == 1
    (steps / "go").unlink()
    once = hpc.start(HPC, *does, *low)
    once.until_printed("began", 3)
    slurm.sh(take_all)
    done = once.wait()
    assert done.code == 1, done
    assert "ended by Slurm: a job with a higher priority took its nodes" in done.err


@pytest.mark.promise(4)
def test_lost_node_is_named(slurm: Slurm, hpc: Launcher) -> None:
    """By its peers, whether Slurm notices it or not."""
    started = begun(hpc, "sleep=300")
    slurm.nodes["node2"].power_off()
    done = started.wait()
    assert done.code == 4, done
    assert "node2" in done.err.split("first failure: ")[1].splitlines()[0]
    assert done.result["unverified"] == ["node2"]
    wait_until(lambda: not slurm.jobs(), "Slurm to notice it, too", 60)  # by a ping, after 30 s


def test_lost_first_node_starts_the_job_again(slurm: Slurm, hpc: Launcher) -> None:
    """The next node asks for that, and speaks for the run; the launch waits for the next start."""
    started = begun(hpc, "sleep=300", "cluster.slurm.requeue=true")
    slurm.nodes["node1"].power_off()

    def is_again(words: str) -> bool:
        return words in started.err.partition("lost node1")[2]

    started.until(lambda: is_again("is pending") or is_again("attempt 2"), "the job to wait again")
    slurm.start_again(started.run_id)
    started.until(lambda: is_again("attempt 2"), "the next start")
    started.send()
    assert started.wait().code == 130


def test_spare_of_the_job_takes_over(hpc: Launcher) -> None:
    """A job of three nodes for two: after a failure the run goes on, on the node that is left."""
    ranks = hpc.rank_overrides("print=began", "once=1:oh_no")
    sized = (ALL_NODES, "task.nnodes=2", "relaunch.max=1", "relaunch.backoff_s=0.1")
    done = hpc(HPC, *ranks, *sized)
    assert done.code == 0, done
    assert [past["nodes"] for past in done.result["past_attempts"]] == [["node1", "node2"]]
    assert {*done.result["nodes"]} == {"node1", "node3"}


def test_jobs_of_a_sweep_follow_each_other(slurm: Slurm, hpc: Launcher) -> None:
    """The next one is submitted once the run of the last has ended, well or not."""
    done = hpc.run_ranks("print=hi fail=1:7", HPC, "cluster.nodes=2,1", "-m")
    assert done.code == 1, done
    steps = r"(run \d of 2): |(submitted) as job|^run \S+ (failed|succeeded) "
    told = ["".join(step) for step in re.findall(steps, done.err, re.MULTILINE)]
    assert told == ["run 1 of 2", "submitted", "failed", "run 2 of 2", "submitted", "succeeded"]
    (record,) = (hpc.folder / "runs").glob("????-????-sweep-*/sweep.json")
    runs = json.loads(record.read_text())["runs"]
    assert [run["exit_code"] for run in runs] == [1, 0]
    states = [slurm.ended_job(run["run_id"])["JobState"] for run in runs]
    assert states == ["FAILED", "COMPLETED"]


@pytest.mark.promise(8)
def test_what_cannot_be_leaves_no_job(slurm: Slurm, hpc: Launcher) -> None:
    """One message for what Slurm, or a node of it, refuses; a dry run asks for nothing."""
    slurm.login.sh("mkdir -p /run/own && chown alice /run/own", user="root")
    planned = hpc.run_ranks("print=hi", HPC, "dry_run=true")
    assert planned.code == 0, planned
    assert planned.out.startswith("#!/bin/bash\n#SBATCH --job-name=")
    assert slurm.sh("ls .runner 2>/dev/null; squeue -h -a") == ""

    def refused(message: str, *words: str) -> None:
        done = hpc.run_ranks("print=hi", HPC, *words)
        assert done.code == 3, done
        assert message in done.err, done
        assert "Traceback" not in done.err

    refused("Invalid partition", "cluster.slurm.partition=nope")
    refused("Slurm would never start the job", "cluster.nodes=99")
    refused("cluster.workdir must be on a disk of all nodes", "cluster.workdir=/run/own/work")
    assert not slurm.jobs()
    slurm.kill(slurm.login, "slurmctld")
    refused("Slurm does not answer")
    slurm.login.sh("mount --bind /dev/null /usr/bin/sbatch", user="root")
    try:
        refused("there is no sbatch on the PATH of login")
    finally:
        slurm.login.sh("umount /usr/bin/sbatch", user="root")


@pytest.fixture
def in_allocation(slurm: Slurm, tmp_path: Path) -> Callable[[str], str]:
    """Runs a script in an allocation of two nodes; `$R` is our program, `words` are a run's."""
    project = tmp_path / "inside"
    (project / "conf/cluster").mkdir(parents=True)
    slurm.write_cluster(project / "conf", transport="local", login_node=None, ssh={"key": None})
    ranks = Launcher(project / "none").rank_overrides("print=hi")
    (project / "ranks").write_text("\n".join(ranks))
    for path in (project, *project.rglob("*")):
        path.chmod(0o777)
    head = f"""
cd {project}
mapfile -t words < ranks
words=(cluster=hpc "${{words[@]}}")
export PYTHONPATH={ROOT}
R="{PYTHON} -m runner"
"""

    def do(body: str) -> str:
        (project / "script").write_text(head + body)
        salloc = f"timeout {50 * PATIENCE:.0f} salloc -N2 bash {project}/script 2>&1"
        return slurm.sh(salloc, timeout=60, check=False)

    return do


def test_allocation_of_a_user_is_left_as_it_was(
    in_allocation: Callable[[str], str], tmp_path: Path
) -> None:
    """Inside salloc no other job is made; `stop` and a signal during the setup end steps alone."""
    out = in_allocation(f"""
$R "${{words[@]}}"; echo code $?
$R "${{words[@]}}" 'task.args=["sleep=300"]' detach=true
until $R ps | grep -q running; do sleep 0.1; done
$R stop --run $(basename $(readlink -f runs/latest)); echo code $?
$R "${{words[@]}}" 'task.args=["touch={tmp_path}/inside/ran"]' 'cluster.setup=["sleep 600"]' &
until squeue -h -s -o %j | grep -q rank; do sleep 0.1; done
kill -TERM $!; wait $!; echo code $?
echo jobs $(squeue -h -o %T)
echo steps $(squeue -h -s)
""")
    assert out.count("code 0") == 2, out
    assert out.count("hi\n") == 2
    assert "no process is left" in out
    assert "its job is cancelled; nothing of it had begun\ncode 143" in out, out
    assert "jobs RUNNING\nsteps\n" in out
    assert not (tmp_path / "inside/ran").exists()
