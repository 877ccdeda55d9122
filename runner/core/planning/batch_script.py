"""Batch script of a run that Slurm starts: its options, and what starts a supervisor per node."""

from __future__ import annotations

import re
from typing import Iterator, Tuple

from runner.core import shell
from runner.core.model.slurm import UNSEEN
from runner.core.protocol.paths import JobPaths
from runner.core.spec import SlurmSpec, Spec

GPUS_OF_GRES = r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)"
"""How many GPUs `--gres` asks for, such as gpu:a100:4."""

_SCRIPT = """\
job={root}
nonce={nonce}
if [ "$(cat "$job/nonce" 2>/dev/null)" != "$nonce" ]; then
  echo "$(hostname): {unseen}" >&2
  exit 3
fi
[ ! -e "$job/cancelled" ] || exit 3
echo "$SLURM_JOB_ID" >"$job/job_id"
echo "{digest}  $job/code" | sha256sum --check --status || exit 3
umask 077
# The values of these are known once the job has its nodes.
number=${{SLURM_RESTART_COUNT:-0}} start=$job/start_$number limit=
names=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n {nnodes})
mkdir -p "$start" && echo "$names" >"$start/nodes" && echo "$number" >"$job/last_start" || exit 3
for name in $names; do touch "$start/$name."{{facts,commands,begun}}; done
touch "$start/orders"
trap : TERM  # Slurm signals every process of the job itself
{on_limit}srun {srun} \\
  {python} slurm-task "$job" "$nonce" <"$job/code" &
while kill -0 $! 2>/dev/null; do wait $!; done
stopped=$({python} slurm-verdict "$job" <"$job/code")
code=$?
{at_end}rm -f "$job/secrets.json"
exit $code
"""
"""Run by bash, whose `wait` returns when a trap was run."""

_ON_LIMIT = """\
tell_ranks() {
  limit=limit
  for name in $names; do echo '{"command": "signal_ranks"}' >>"$start/$name.commands"; done
}
trap tell_ranks USR1
"""
"""The signal before the time limit is for the script alone: torchrun would end by it."""

_REQUEUE = """\
[ ! -e "$job/process" ] || stopped=allocation
case $stopped$limit$code$(scontrol -o show job "$SLURM_JOB_ID") in
stopped* | allocation*) ;;  # by a user; in an allocation of a user
*=COMPLETING\\ * | *=PENDING\\ *) exit $code ;;  # Slurm ends this start, maybe not the last
limit* | 4* | *=RUNNING\\ *\\ PreemptTime=[0-9]*)
  scontrol requeue "$SLURM_JOB_ID" && exec sleep 60 ;;
esac
"""
"""Slurm starts a job again by itself only if it has to end it, not if it ends in its grace time.

4 is the exit code of a run that has lost a node. The secrets stay for the next start. In a user's
allocation, where `process` is, nothing is requeued.
"""


def batch_script(spec: Spec, workdir: str, python: str, nonce: str, digest: str) -> str:
    """Return the script that sbatch takes.

    `workdir` is absolute, `python` starts our code from standard input, `nonce` tells the folder of
    the run from any other, `digest` is the SHA-256 of our code in it.
    """
    paths, slurm = JobPaths(workdir, spec.run_id), spec.slurm or SlurmSpec()
    options = [f"#SBATCH {shell.quote(option)}" for option in _options(spec, slurm, paths)]
    head = f"# Run {spec.run_id}: srun starts a supervisor on each node of the job."
    root, srun = shell.quote(paths.root), " ".join(_srun_options(spec, slurm))
    body = _SCRIPT.format(
        root=root,
        unseen=UNSEEN.format("$job"),
        nonce=nonce,
        digest=digest,
        srun=srun,
        python=python,
        nnodes=slurm.nnodes,
        on_limit=_ON_LIMIT if slurm.signal_before else "",
        at_end=_REQUEUE if slurm.requeue else "",
    )
    return "\n".join(["#!/bin/bash", *options, head, body])


def _options(spec: Spec, slurm: SlurmSpec, paths: JobPaths) -> Iterator[str]:
    """Yield the options of sbatch."""
    yield f"--job-name={spec.run_id}"
    yield f"--comment={spec.run_id}"
    fewest = spec.min_nodes or slurm.nnodes
    yield f"--nodes={fewest}" if fewest == slurm.nnodes else f"--nodes={fewest}-{slurm.nnodes}"
    if fewest == slurm.nnodes:  # of a range, Slurm would give the fewest
        yield "--ntasks-per-node=1"
    named = ("partition", "account", "qos", "time", "constraint", "nodelist", "exclude")
    for name in (*named, "reservation", "licenses", "gres"):
        if value := getattr(slurm, name):
            yield f"--{name}={value}"
    login = spec.nodes[0]
    if login.gpu_count:
        yield f"--gpus-per-node={login.gpu_count}"
    nproc = _ranks_per_node(spec)
    if slurm.cpus_per_rank:
        yield f"--cpus-per-task={slurm.cpus_per_rank * nproc}"
    if slurm.mem_per_rank:
        yield f"--mem={int(slurm.mem_per_rank[:-1]) * nproc}{slurm.mem_per_rank[-1]}"
    if slurm.signal_before:
        yield f"--signal=B:USR1@{slurm.signal_before}"
    if _survives_loss(spec):
        yield "--no-kill"
    yield "--requeue" if slurm.requeue else "--no-requeue"
    yield "--open-mode=append"
    yield f"--output={paths.log.replace('%', '%%')}"
    yield "--export=NONE"
    yield from slurm.extra


def _survives_loss(spec: Spec) -> bool:
    """Return whether the run may go on without a node, which Slurm would end the job for."""
    return bool(spec.relaunch.max or spec.min_nodes)


def _ranks_per_node(spec: Spec) -> int:
    """Return how many ranks a node is to have, as far as that is known before the job starts."""
    login, gres = spec.nodes[0], spec.slurm.gres if spec.slurm else ""
    gpus = re.search(GPUS_OF_GRES, gres)
    count = login.gpu_count or (int(gpus[1]) if gpus else 0)
    return 1 if spec.task.is_plain else login.nproc_per_node or count or 1


def _srun_options(spec: Spec, slurm: SlurmSpec) -> Tuple[str, ...]:
    """Return the options of srun; what a job has asked for by cpus-per-task is no step's."""
    return (
        "--export=ALL",
        '--nodes="$(echo "$names" | wc -l)"',
        '--nodelist="$(echo "$names" | paste -sd,)"',
        "--ntasks-per-node=1",
        f"--job-name={spec.run_id}",
        "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}",
        *(("--gpu-bind=none",) if re.search(GPUS_OF_GRES, slurm.gres) else ()),
        "--mpi=none",
        "--kill-on-bad-exit=0",
        *(("--no-kill",) if _survives_loss(spec) else ()),
        "--wait=0",
        '--output="${start//\\%/%%}/%N.log"',
        *map(shell.quote, slurm.srun),
    )
