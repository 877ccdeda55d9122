"""Sweeps of jobs: several at once, in a chain, or in one job, and what is told of each run."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.lab.launching import Controller, Launcher, Result
from tests.lab.slurm import HPC, Slurm
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.slurm


def commands(text: str) -> list[list[str]]:
    """Return the words of the commands that are printed at the end of a sweep."""
    return [line.split() for line in re.findall(r"^ +python -m runner (.*)$", text, re.MULTILINE)]


def sweep(hpc: Launcher, *overrides: str, seconds: int = 3) -> Controller:
    """Start a sweep of four runs, of which one fails."""
    words = [word for word in hpc.rank_overrides() if not word.startswith("task.args=")]
    args = ",".join(f'["print={n}","sleep={seconds}","fail={3 - n}:7"]' for n in range(4))
    return hpc.start("-m", HPC, "cluster.nodes=1", *words, f"task.args={args}", *overrides)


def ended_sweep(slurm: Slurm, hpc: Launcher, override: str, *, most: int) -> Result:
    """Run a sweep to its end, with this many jobs at once at the most."""
    started, seen = sweep(hpc, override), 0
    while started.process.poll() is None:
        seen = max(seen, len(slurm.jobs()))
    done = started.wait()
    assert done.code == 1, done
    assert seen == most
    return done


def test_sweep_has_a_few_jobs_at_once(slurm: Slurm, hpc: Launcher) -> None:
    """Each run is reported and recorded when it has ended."""
    done = ended_sweep(slurm, hpc, "sweep.parallel=2", most=2)
    assert "3 of 4 runs succeeded" in done.err
    results = [json.loads(path.read_text()) for path in hpc.folder.glob("runs/1*/result.json")]
    assert sorted(result["state"] for result in results) == ["failed", *["succeeded"] * 3]


def test_detached_sweep_is_a_chain(slurm: Slurm, hpc: Launcher) -> None:
    """All jobs are submitted; those beyond the limit wait for others."""
    done = sweep(hpc, "sweep.parallel=3", "detach=true", seconds=12).wait()
    assert done.code == 0, done
    assert len(slurm.jobs()) == 4
    assert slurm.jobs("%r").count("Dependency") == 1
    assert "0 of 4 runs succeeded, 4 submitted" in done.err
    words, report = commands(done.err)
    assert hpc(*words).out.count("-rank-") == 4
    shown = hpc(*report)
    assert (shown.code, "4 runs: " in shown.out) == (0, True), shown
    wait_until(lambda: not slurm.jobs(), "the jobs to end", 60)


def test_ctrl_c_cancels_the_jobs_of_a_sweep(slurm: Slurm, hpc: Launcher) -> None:
    """Those that wait, and those that run; no other is submitted."""
    started = sweep(hpc, "sweep.parallel=2", seconds=120)
    begun = "cat .runner/runs/*/.slurm/start_0/*.begun | wc -l"
    wait_until(lambda: int(slurm.sh(begun, check=False)) == 2, "two runs to begin", 60)
    started.send()
    done = started.wait()
    assert done.code == 130, done
    wait_until(lambda: not slurm.jobs(), "the jobs to end", 20)
    assert "2 not started" in done.err, done
    assert [words[0] for words in commands(done.err)] == ["-m", "report"], done
    results = [json.loads(path.read_text()) for path in hpc.folder.glob("runs/1*/result.json")]
    assert [result["state"] for result in results] == ["stopped"] * 2


def test_sweep_that_is_left_goes_on(slurm: Slurm, hpc: Launcher) -> None:
    """Its terminal is gone; what is printed about each run works."""
    hpc.env["COLUMNS"] = "500"
    started = sweep(hpc, "sweep.parallel=2", 'cluster.slurm.extra=["--begin=now+1hour"]')
    wait_until(lambda: len(slurm.jobs()) == 2, "two jobs", 30)
    started.send(signal.SIGHUP)
    left = started.wait()
    assert left.code == 129, left
    assert len(slurm.jobs()) == 2
    printed = commands(left.err)
    assert sorted(words[0] for words in printed if words[0] != "-m") == [
        *("attach", "attach", "ps", "report", "stop", "stop"),
    ]
    for words in (words for words in printed if words[0] in ("ps", "stop")):
        done = hpc(*words)
        assert done.code == 0, done
    assert not slurm.jobs()


@pytest.mark.all
def test_late_answer_to_a_sweep_of_one_job(slurm: Slurm, hpc: Launcher, steps: Path) -> None:
    """Slurm has taken the job, and sbatch says that it has not."""
    late = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    with slurm.wrapped_sbatch(steps, f'$SBATCH "$@" >/dev/null; echo "{late}" >&2; exit 1'):
        done = sweep(hpc, "sweep.one_job=true").wait()
    assert "3 of 4 runs succeeded" in done.err, done
    wait_until(lambda: not slurm.jobs(), "the job to end", 20)


def test_sweep_may_be_one_job(slurm: Slurm, hpc: Launcher) -> None:
    """For sites that count them: its runs follow each other, and each has its own end."""
    done = ended_sweep(slurm, hpc, "sweep.one_job=true", most=1)
    assert "3 of 4 runs succeeded" in done.err
    wait_until(lambda: not slurm.jobs(), "the job to end", 20)
