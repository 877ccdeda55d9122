"""Runs that a real Slurm starts: the same words, logs, verdicts and proofs as over SSH."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.lab.launching import Launcher
from tests.lab.slurm import EXCLUSIVE, HPC, Slurm, begun, ended
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.slurm


def test_run_is_as_over_ssh(slurm: Slurm, hpc: Launcher) -> None:
    """Compute nodes are never logged in to; the job ends with the run's own exit code."""
    done = hpc.run_ranks("print=hello env=RANK sleep=3", HPC, "cluster.nodes=4", "sample_s=1")
    assert done.code == 0, done
    for rank, node in enumerate(slurm.nodes):
        assert done.log(node, rank) == f"hello\nRANK={rank}\n"
        assert "Accepted" not in slurm.nodes[node].console.read_text()
    assert done.result["state"] == "succeeded"
    job = slurm.ended_job(done.result["run_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
    lines = (done.folder / "samples.jsonl").read_text().splitlines()
    assert {json.loads(line)["node"] for line in lines} == slurm.nodes.keys()
    files = slurm.sh(f"ls .runner/runs/{done.result['run_id']}/.slurm").split()
    assert "secrets.json" not in files


def test_torchrun_trains(slurm: Slurm, hpc: Launcher) -> None:
    """A shipped task, with torchrun on two nodes."""
    done = hpc(HPC, "task=ddp", "task.args.epochs=1", seconds=120)
    assert done.code == 0, done
    assert slurm.ended_job(done.result["run_id"])["JobState"] == "COMPLETED"


def test_secrets_reach_ranks_alone(slurm: Slurm, hpc: Launcher) -> None:
    """They are in no argument of Slurm, in no script, and in no record once the run has ended."""
    hpc.env["TOKEN"] = "tell-nobody"
    started = begun(hpc, "env=TOKEN sleep=300", "cluster.secrets=[TOKEN]")
    run_id = started.run_id
    started.until_printed("TOKEN=tell-nobody", 2)
    for host in slurm.lab.hosts.values():
        assert "tell-nobody" not in " ".join(p.cmdline for p in host.processes())
    assert "tell-nobody" not in slurm.sh("scontrol show job; cat .runner/runs/*/.slurm/batch.sh")
    started.send()
    assert started.wait().code == 130
    slurm.ended_job(run_id)
    found = slurm.sh(f"grep -rl tell-nobody .runner/runs/{run_id} || true").split()
    assert all(re.search(r"/rank_\d\.out$", path) for path in found), found


def test_first_failure_ends_all(slurm: Slurm, hpc: Launcher) -> None:
    """The code of the rank that failed first counts, not what srun makes of all of them."""
    done = hpc.run_ranks("fail=1:7 sleep=300", HPC)
    assert done.code == 1, done
    assert "first failure: rank 1 on node2 exited with 7" in done.err
    job = slurm.ended_job(done.result["run_id"])
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "1:0")


def test_stop_is_proven(slurm: Slurm, hpc: Launcher) -> None:
    """Deaf ranks with daemons are gone, and so is the job."""
    started = begun(hpc, "deaf daemon sleep=300", "detach=true", "grace_s=2")
    stopped = ended(hpc, "stop", started.run_id)
    assert stopped.code == 0, stopped
    assert "no process is left" in stopped.out
    assert not slurm.jobs()
    verdict = ended(hpc, "why", started.run_id)
    assert "stop requested by" in verdict.out, verdict


def test_ctrl_c_stops(slurm: Slurm, hpc: Launcher) -> None:
    """As at any launch."""
    started = begun(hpc, "sleep=300")
    started.send()
    done = started.wait()
    assert done.code == 130, done
    wait_until(lambda: not slurm.jobs(), "the job to end", 20)


def test_scancel_is_the_verdict(slurm: Slurm, hpc: Launcher) -> None:
    """The supervisors record it at once, and Slurm says why."""
    started = begun(hpc, "sleep=300")
    slurm.sh(f"scancel --name={started.run_id}")
    done = started.wait()
    assert done.code == 1, done
    assert "first failure: ended by Slurm: it was cancelled" in done.err
    assert done.result["state"] == "stopped"


def test_scancel_of_deaf_ranks(slurm: Slurm, hpc: Launcher) -> None:
    """Slurm kills all, also the supervisors; their record is completed from the login node."""
    started = begun(hpc, "deaf sleep=300")
    slurm.sh(f"scancel --name={started.run_id}")
    done = started.wait(120)
    assert done.code in (1, 5), done
    assert "ended by Slurm: it was cancelled" in done.err


def test_verbs_from_another_machine(slurm: Slurm, hpc: Launcher) -> None:
    """A detached run is listed, read, followed and fetched without its YAML's task."""
    started = begun(hpc, "count=60/0.25", "detach=true")
    run_id = started.run_id
    other = hpc.at_another_machine("desk")
    slurm.write_cluster(other.folder / "conf")
    where = ("--cluster", "hpc")
    listed = other("ps", *where)
    assert re.search(rf"{run_id} .*running .*node\[1-2\]", listed.out), listed
    assert "began" in other("logs", "--run", run_id, *where).out
    stacks = other("stacks", "--run", run_id, *where)
    assert "ranks 0-1 on node[1-2]" in stacks.out, stacks
    followed = other("attach", "--run", run_id, *where)
    assert followed.code == 0, followed
    assert followed.out.count("line 59") == 2
    pulled = other("pull", "--run", run_id)
    assert pulled.code == 0, pulled
    assert "succeeded" in other("why", "--run", run_id).out


def test_pending_job_is_shown_and_cancelled(slurm: Slurm, hpc: Launcher) -> None:
    """Slurm's reason is shown; `stop` and Ctrl-C leave no job behind."""
    first = begun(hpc, "sleep=300", "detach=true", "cluster.nodes=4", EXCLUSIVE)
    waiting = hpc.start(HPC, *hpc.rank_overrides("print=hi"), EXCLUSIVE)
    waiting.until(lambda: "is pending (Resources)" in waiting.err, "a reason")
    listed = hpc("ps")
    assert re.search(rf"{waiting.run_id} .*pending \(\w+\)", listed.out), listed
    asked = ended(hpc, "logs", waiting.run_id)
    assert asked.code == 3
    assert "has not begun" in asked.err
    waiting.send()
    done = waiting.wait()
    assert done.code == 130, done
    assert "its job is cancelled" in done.err
    third = hpc(HPC, *hpc.rank_overrides("print=hi"), EXCLUSIVE, "detach=true")
    run_id = third.folder.name
    cancelled = ended(hpc, "stop", run_id)
    assert cancelled.code == 0, cancelled
    assert slurm.jobs("%j") == [first.run_id]


def test_attach_waits_for_the_job(hpc: Launcher) -> None:
    """A detached run that is pending is followed from its start."""
    first = begun(hpc, "sleep=300", "detach=true", "cluster.nodes=4", EXCLUSIVE)
    second = hpc(HPC, *hpc.rank_overrides("print=hi"), EXCLUSIVE, "detach=true")
    follower = hpc.start("attach", "--run", second.folder.name)
    follower.until(lambda: "is pending" in follower.err, "it to wait")
    assert ended(hpc, "stop", first.run_id).code == 0
    done = follower.wait()
    assert done.code == 0, done
    assert done.out.count("hi") == 2


SAVES = """\
import os, signal, sys, time
stop = []
signal.signal(signal.SIGUSR2, lambda *_: stop.append(1))
path = os.environ["STATE"] + os.environ["RANK"]
begin = int(open(path).read()) if os.path.exists(path) else 0
print("begin", begin, "of", os.environ["TOKEN"], flush=True)
for step in range(begin, begin + 1000 if not begin else begin + 1):
    time.sleep(0.1)
    if stop:
        open(path, "w").write(str(step + 1))
        sys.exit(0)
"""


def test_run_goes_on_after_its_time_limit(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """Ranks alone get the signal, the job starts again, and the run goes on as another attempt."""
    (hpc.folder / "train.py").write_text(SAVES)
    limit = ["time=0:02:00", "signal_before=30", "signal=SIGUSR2", "requeue=true"]
    task = ["task.script=train.py", "task.entry=plain", f"task.env.STATE={steps}/"]
    hpc.env["TOKEN"] = "tell-nobody"
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
    assert len(re.findall(r"begin [1-9]\d* of tell-nobody\n", done.out)) == 2
    assert done.result["past_attempts"][0]["nodes"] == ["node1", "node2"]


@pytest.mark.all
def test_time_limit_is_the_verdict(hpc: Launcher) -> None:
    """Without a signal of ours; Slurm looks at the limit about once a minute."""
    started = begun(hpc, "sleep=300", "cluster.slurm.time=0:00:10")
    done = started.wait(170)
    assert done.code == 1, done
    assert "ended by Slurm: it reached its time limit" in done.err


def test_preemption_is_the_verdict(slurm: Slurm, hpc: Launcher) -> None:
    """A job that is not to start again ends."""
    low = ("cluster.slurm.partition=low", EXCLUSIVE, "cluster.nodes=4")
    started = begun(hpc, "sleep=300", *low)
    slurm.sh("sbatch -p high -N4 --exclusive -t 1 --wrap 'sleep 1' -o /dev/null")
    done = started.wait(60)
    assert done.code == 1, done
    assert "ended by Slurm: a job with a higher priority took its nodes" in done.err


def test_preempted_job_starts_again(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """If it is to: as another attempt of the same run."""
    low = ("cluster.slurm.partition=low", "cluster.slurm.requeue=true", EXCLUSIVE)
    hpc.env["TOKEN"] = "tell-nobody"
    does = ("print=began", "env=TOKEN", f"touch={steps}/RANK", f"wait={steps}/go")
    secret = "cluster.secrets=[TOKEN]"
    started = hpc.start(HPC, *hpc.rank_overrides(*does), *low, secret, "cluster.nodes=4")
    started.until_printed("began", 4)
    slurm.sh("sbatch -p high -N4 --exclusive -t 1 --wrap 'sleep 1' -o /dev/null")
    started.until(lambda: "(BeginTime)" in started.err, "the job to wait")
    (steps / "go").touch()
    slurm.start_again(started.run_id)
    done = started.wait()
    assert done.code == 0, done
    assert len(done.result["past_attempts"]) == 1
    assert done.out.count("TOKEN=tell-nobody") == 8, done.out


def test_lost_node_is_named(slurm: Slurm, hpc: Launcher) -> None:
    """Its peers notice long before Slurm does."""
    started = begun(hpc, "sleep=300", "cluster.nodes=3", "lost_s=4")
    started.until_printed("began", 3)
    slurm.nodes["node2"].power_off()
    done = started.wait(60)
    assert done.code == 4, done
    assert "node2" in done.err.split("first failure: ")[1].splitlines()[0]
    assert done.result["unverified"] == ["node2"]
    wait_until(lambda: not slurm.jobs(), "Slurm to notice it, too", 60)  # by a ping, after 30 s


def test_controllers_come_and_go(slurm: Slurm, hpc: Launcher) -> None:
    """Killing the launch, and slurmctld, changes nothing for the run."""
    started = begun(hpc, "count=80/0.2")
    started.process.kill()
    slurm.save_state(started.run_id)
    slurm.kill(slurm.login, "slurmctld")
    follower = hpc.start("attach", "--run", started.run_id)
    follower.until_printed("line 3", 2)
    slurm.start_controller()
    done = follower.wait()
    assert done.code == 0, done
    assert done.out.count("line 79") == 2


def test_spare_of_the_job_takes_over(hpc: Launcher) -> None:
    """A job of three nodes for two: after a failure the run goes on, on the node that is left."""
    ranks = hpc.rank_overrides("print=began", "sleep=2", "once=1:oh_no")
    sized = ("cluster.nodes=3", "task.nnodes=2", "relaunch.max=1", "relaunch.backoff_s=0.1")
    started = hpc.start(HPC, *ranks, *sized)
    done = started.wait()
    assert done.code == 0, done
    assert [past["nodes"] for past in done.result["past_attempts"]] == [["node1", "node2"]]
    assert {*done.result["nodes"]} == {"node1", "node3"}


def test_signals_reach_the_controller_alone(slurm: Slurm, hpc: Launcher) -> None:
    """A closed terminal leaves the run, which needs no controller."""
    started = begun(hpc, "sleep=300")
    started.send(signal.SIGHUP)
    assert started.wait().code == 129
    assert slurm.jobs("%T") == ["RUNNING"]
    assert ended(hpc, "stop", started.run_id).code == 0


def test_two_users_at_once(slurm: Slurm, hpc: Launcher) -> None:
    """Each has jobs, folders and a list of their own."""
    slurm.write_cluster(hpc.conf, "roots", ssh={"user": "root"})
    mine = begun(hpc, "sleep=300")
    others = hpc.start("cluster=roots", *hpc.rank_overrides("print=began", "sleep=300"))
    others.until_printed("began", 2)
    assert sorted(slurm.jobs("%u")) == ["alice", "root"]
    listed = hpc("ps", "--cluster", "roots")
    assert others.run_id in listed.out
    assert mine.run_id not in listed.out
    refused = hpc("stop", "--run", mine.run_id, "--cluster", "roots")
    assert refused.code != 0
    assert ended(hpc, "stop", others.run_id).code == 0
    assert slurm.jobs("%u") == ["alice"]


@pytest.mark.all
def test_range_of_nodes(hpc: Launcher) -> None:
    """A job of two to four nodes gets what is there."""
    begun(hpc, "sleep=600", "detach=true", "cluster.nodes=1", EXCLUSIVE)
    ranged = ("cluster.nodes='2:4'", "rendezvous=c10d", EXCLUSIVE)
    done = hpc(HPC, "task=ddp", "task.args.epochs=1", *ranged, seconds=150)
    assert done.code == 0, done
    assert "3 ranks on 3 nodes" in done.err
