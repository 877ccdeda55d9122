"""Runs that a real Slurm starts: the same words, logs, verdicts and proofs as over SSH."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.lab.slurm import EXCLUSIVE, HPC, PYTHON, ROOT, HpcLauncher, Slurm, begun, ended
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slurm

ALL_NODES = "cluster.nodes=3"
SECRET = "tell-nobody"


@pytest.mark.smoke
@pytest.mark.promise(5)
def test_run_is_as_over_ssh(slurm: Slurm, hpc: HpcLauncher) -> None:
    """Compute nodes are never logged in to; the job ends with the run's own exit code."""
    done = hpc.run_ranks("print=hello env=RANK sleep=3", HPC, "sample_s=1")
    assert done.code == 0, done
    for rank, node in enumerate(("node1", "node2")):
        assert done.log(node, rank) == f"hello\nRANK={rank}\n"
        assert "Accepted" not in slurm.nodes[node].console.read_text()
    assert done.out.count("] hello\n") == 2
    assert done.result["state"] == "succeeded"
    job = slurm.ended_job(done.result["run_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
    files = done.folder.glob("hosts/*/attempt_*/samples.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert {json.loads(line)["node"] for line in lines} == {"node1", "node2"}


def test_ranks_of_srun_have_its_numbers(hpc: HpcLauncher) -> None:
    """Where a program wants them; no other rank has those of the step that its agent is."""
    words = "env=SLURM_PROCID env=SLURM_LOCALID env=SLURM_NTASKS env=SLURM_STEP_ID env=SLURM_NNODES"
    by_srun = hpc.run_ranks(words, HPC, "task.entry=srun", "cluster.nproc_per_node=2")
    assert by_srun.code == 0, by_srun
    assert "SLURM_PROCID=3\nSLURM_LOCALID=1\nSLURM_NTASKS=4\n" in by_srun.log("node2", 3)
    plain = hpc.run_ranks(words, HPC)
    assert re.findall(r"\w+=\d", plain.log("node2", 1)) == ["SLURM_NNODES=2"]


@pytest.mark.smoke
@pytest.mark.promise(2)
def test_stop_is_proven(slurm: Slurm, hpc: HpcLauncher) -> None:
    """Deaf ranks with daemons are gone, and so is the job."""
    started = begun(hpc, "deaf daemon sleep=300", "detach=true", "grace_s=2")
    stopped = ended(hpc, "stop", started.run_id)
    assert stopped.code == 0, stopped
    assert "no process is left, as its nodes have proven" in stopped.out
    assert not slurm.jobs()
    verdict = ended(hpc, "why", started.run_id)
    assert "stop requested" in verdict.out, verdict


@pytest.mark.promise(7)
def test_ctrl_c_leaves_no_job_and_no_secret(slurm: Slurm, hpc: HpcLauncher) -> None:
    """Secrets are in no argument, in no script, and in no record."""
    hpc.env["TOKEN"] = SECRET
    started = begun(hpc, "env=TOKEN sleep=300", "cluster.secrets=[TOKEN]")
    started.until_printed(f"TOKEN={SECRET}", 2)
    for node in slurm.nodes.values():
        assert SECRET not in " ".join(p.cmdline for p in node.processes())
    assert SECRET not in slurm.sh("scontrol show job")
    started.send()
    assert started.wait().code == 130
    slurm.ended_job(started.run_id)
    assert not slurm.jobs()
    found = slurm.sh(f"grep -rl {SECRET} .runner/runs/ {started.folder}").split()
    assert all(re.search(r"/(rank_\d|job)\.out$", path) for path in found), found


@pytest.mark.smoke
def test_scancel_is_the_verdict(slurm: Slurm, hpc: HpcLauncher) -> None:
    """The launch records it in time, and says why; nothing is left in doubt."""
    started = begun(hpc, "deaf daemon sleep=300", "grace_s=2")
    slurm.sh(f"scancel --name={started.run_id}")
    done = started.wait()
    assert done.code == 1, done
    assert "first failure: ended by Slurm: it was cancelled" in done.err
    assert (done.result["state"], done.result["unverified"]) == ("stopped", [])


@pytest.mark.promise(10)
def test_followers_come_and_go(slurm: Slurm, hpc: HpcLauncher, steps: Path) -> None:
    """Killing who submitted it, and slurmctld, changes nothing."""
    started = begun(hpc, f"count=5 wait={steps}/go print=end")
    run_id = started.run_id
    started.kill()
    slurm.save_state(run_id)
    stacks = ended(hpc, "stacks", run_id)
    assert "ranks 0-1 on node[1-2]" in stacks.out, stacks
    assert re.search(rf"{run_id} .*running .*node\[1-2\]", hpc("ps").out)
    slurm.kill(slurm.login, "slurmctld")
    follower = hpc.start("attach", "--run", run_id)
    follower.until_printed("line 4", 2)
    slurm.start_daemons()
    (steps / "go").touch()
    done = follower.wait()
    assert done.code == 0, done
    assert done.out.count("] end") == 2
    assert ended(hpc, "pull", run_id).code == 0
    assert "succeeded" in ended(hpc, "why", run_id).out


def test_a_killed_launch_is_told(slurm: Slurm, hpc: HpcLauncher) -> None:
    """What it could not record is: that it was, by whoever asks."""
    started = begun(hpc, "sleep=300", "disconnect_s=10")
    slurm.sh(f"scancel --batch --signal=KILL --name={started.run_id}")
    done = started.wait()
    assert (done.code, "ended by Slurm: its launch was killed" in done.err) == (1, True), done
    told = ended(hpc, "why", started.run_id)
    assert (told.code, "its launch was killed" in told.out) == (0, True), told

    def is_free() -> bool:
        return not any(host.processes("RUNNER_RUN_ID") for host in slurm.nodes.values())

    wait_until(is_free, "the ranks to end without it", 60)


def test_pending_job_is_shown_and_cancelled(slurm: Slurm, hpc: HpcLauncher) -> None:
    """Slurm's reason is shown; Ctrl-C, `stop` and scancel leave no job behind."""
    first = begun(hpc, "sleep=300", "detach=true", ALL_NODES, EXCLUSIVE)
    words = (HPC, *hpc.rank_overrides("print=hi"), EXCLUSIVE)
    waiting = hpc.start(*words)
    waiting.until(lambda: "is pending (Resources)" in waiting.err, "a reason")
    listed = hpc("ps")
    assert re.search(rf"{waiting.run_id}: job \d+ is PENDING \(\w+\)", listed.out), listed
    assert "nothing is running" not in listed.out
    asked = ended(hpc, "why", waiting.run_id)
    assert (asked.code, "has not ended: job" in asked.err) == (3, True), asked
    asked = ended(hpc, "logs", waiting.run_id)
    assert (asked.code, "has not begun: job" in asked.err) == (3, True), asked
    waiting.send()
    interrupted = waiting.wait()
    assert interrupted.code == 130, interrupted
    assert "its job is cancelled" in interrupted.err
    detached = hpc(*words, "detach=true")
    cancelled = hpc("stop", "--run", "latest")
    assert (cancelled.code, detached.folder.name in cancelled.out) == (0, True), cancelled
    third = hpc.start(*words)
    third.until(lambda: "is pending" in third.err, "the job to wait")
    slurm.sh(f"scancel --name={third.run_id}")
    done = third.wait()
    assert (done.code, "it was cancelled" in done.err) == (3, True), done
    assert slurm.jobs("%j") == [first.run_id]


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


def test_run_goes_on_after_its_time_limit(slurm: Slurm, hpc: HpcLauncher, steps: Path) -> None:
    """Ranks alone get the signal, the job starts again, and the run goes on as another attempt."""
    script = hpc.folder / "train.py"
    script.write_text(SAVES)
    limit = ["time=0:20:00", "signal_before=60", "signal=SIGUSR2", "requeue=true"]
    task = ["task.script=train.py", "task.entry=plain", f"task.env.STATE={steps}/"]
    hpc.env["TOKEN"] = SECRET
    slurm_words = (f"cluster.slurm.{word}" for word in limit)
    started = hpc.start(HPC, "cluster.secrets=[TOKEN]", *task, *slurm_words)
    started.until_printed("begin 0", 2)
    script.write_text("raise SystemExit('the code of now')\n")
    job_id = slurm.job(started.run_id)["JobId"]
    slurm.sh(f"scancel --batch --signal=USR1 {job_id}")  # as Slurm does before the limit
    started.until(lambda: "pending (BeginTime)" in started.err, "the job to wait")
    assert "SIGUSR2" in started.err
    slurm.start_again(started.run_id)
    done = started.wait()
    assert done.code == 0, done
    assert done.out.count(f"begin 7 of {SECRET}\n") == 2
    assert done.result["past_attempts"][0]["nodes"] == ["node1", "node2"]


def test_preempted_job_starts_again(slurm: Slurm, hpc: HpcLauncher, steps: Path) -> None:
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
def test_lost_node_is_named(slurm: Slurm, hpc: HpcLauncher) -> None:
    """By the launch, whether Slurm notices it or not."""
    started = begun(hpc, "sleep=300", "relaunch.max=1")  # so Slurm leaves the job alone
    slurm.nodes["node2"].power_off()
    done = started.wait()
    assert done.code == 4, done
    assert "node2" in done.err.split("first failure: ")[1].splitlines()[0]
    assert done.result["unverified"] == ["node2"]


def test_lost_first_node_starts_the_job_again(slurm: Slurm, hpc: HpcLauncher) -> None:
    """Slurm notices that, and the run goes on as another attempt."""
    started = begun(hpc, "sleep=300", "cluster.slurm.requeue=true")
    slurm.nodes["node1"].power_off()

    def is_again(words: str) -> bool:
        return words in started.err.partition("every rank started")[2]

    started.until(lambda: is_again("is pending") or is_again("attempt 2"), "the job to wait again")
    slurm.start_again(started.run_id)
    started.until(lambda: is_again("attempt 2"), "the next start")
    started.send()
    assert started.wait().code == 130


def test_spare_of_the_job_takes_over(hpc: HpcLauncher) -> None:
    """A job of three nodes for two: after a failure the run goes on, on the node that is left."""
    ranks = hpc.rank_overrides("print=began", "once=1:oh_no")
    sized = (ALL_NODES, "task.nnodes=2", "relaunch.max=1", "relaunch.backoff_s=0.1")
    done = hpc(HPC, *ranks, *sized)
    assert done.code == 0, done
    assert [past["nodes"] for past in done.result["past_attempts"]] == [["node1", "node2"]]
    assert {*done.result["nodes"]} == {"node1", "node3"}


def test_jobs_of_a_sweep_follow_each_other(slurm: Slurm, hpc: HpcLauncher) -> None:
    """The next one is submitted once the run of the last has ended, well or not.

    The code of the rank that failed first counts, not what srun and torchrun make of it.
    """
    hpc.entry = "torchrun"
    done = hpc.run_ranks("print=hi fail=1:7", HPC, "cluster.nodes=2,1", "-m")
    assert done.code == 1, done
    assert "first failure: rank 1 on node2 exited with 7" in done.err
    steps = r"(run \d of 2): |(submitted) as job|^run \S+ (failed|succeeded) "
    told = ["".join(step) for step in re.findall(steps, done.err, re.MULTILINE)]
    assert told == ["run 1 of 2", "submitted", "failed", "run 2 of 2", "submitted", "succeeded"]
    (record,) = (hpc.folder / "runs").glob("????-????-sweep-*/sweep.json")
    runs = json.loads(record.read_text())["runs"]
    assert [run["exit_code"] for run in runs] == [1, 0]
    states = [slurm.ended_job(run["run_id"])["JobState"] for run in runs]
    assert states == ["FAILED", "COMPLETED"]


@pytest.mark.promise(8)
def test_what_cannot_be_leaves_no_job(slurm: Slurm, hpc: HpcLauncher) -> None:
    """One message for what Slurm, or a node of it, refuses; a dry run asks for nothing."""
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
    refused("there is no nobody", "cluster.python=nobody")
    assert not slurm.jobs()
    slurm.login.sh("mkdir /run/own && chown alice /run/own", user="root")
    apart = Path("/run/own")
    slurm.login.sh(f"cp -r {hpc.folder}/conf {apart}; touch {apart}/train.py")
    done = slurm.login.sh(
        f"cd {apart}; PYTHONPATH={ROOT} {PYTHON} -m runner {HPC} train.py 2>&1",
        check=False,
        timeout=60,
    )
    assert "must be on a disk that the nodes share with this machine" in done
    slurm.kill(slurm.login, "slurmctld")
    refused("Unable to contact slurm controller")
    slurm.login.sh("mount --bind /dev/null /usr/bin/sbatch", user="root")
    try:
        refused("sbatch")
    finally:
        slurm.login.sh("umount /usr/bin/sbatch", user="root")


def test_allocation_of_a_user_is_left_as_it_was(slurm: Slurm, hpc: HpcLauncher) -> None:
    """Inside salloc no other job is made; `stop` and a signal end what the launch started alone."""
    words = " ".join(f"'{word}'" for word in (HPC, *hpc.rank_overrides("print=hi")))
    script = hpc.folder / "script"
    script.write_text(f"""
cd {hpc.folder}
export PYTHONPATH={ROOT}
R="{PYTHON} -m runner"
$R {words}; echo code $?
$R {words} 'task.args_after=["sleep=300"]' detach=true
until $R ps | grep -q running; do sleep 0.1; done
$R stop --run $(basename $(readlink -f runs/latest)); echo code $?
$R {words} 'task.args_after=["touch={hpc.folder}/ran"]' 'cluster.setup=["sleep 600"]' &
until squeue -h -s | grep -q .; do sleep 0.1; done
kill -TERM $!; wait $!; echo code $?
echo jobs $(squeue -h -o %T)
""")
    salloc = f"timeout {50 * PATIENCE:.0f} salloc -N2 bash {script} 2>&1"
    out = slurm.sh(salloc, timeout=60, check=False)
    assert out.count("code 0") == 2, out
    assert out.count("hi\n") == 2
    assert "no process is left" in out
    assert "code 143" in out, out
    assert "jobs RUNNING\n" in out
    assert not (hpc.folder / "ran").exists()
