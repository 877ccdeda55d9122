#!/bin/bash
#SBATCH --job-name=0314-1592-digits-65a3
#SBATCH --comment=0314-1592-digits-65a3
#SBATCH --nodes=2-5
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/ada/.runner/runs/0314-1592-digits-65a3/.slurm/batch.log
#SBATCH --export=NONE
# Run 0314-1592-digits-65a3: srun starts a supervisor on each node of the job.
job=/home/ada/.runner/runs/0314-1592-digits-65a3/.slurm
nonce=0f1e2d3c
if [ "$(cat "$job/nonce" 2>/dev/null)" != "$nonce" ]; then
  echo "$(hostname): $job is not seen there; cluster.workdir must be on a disk of all nodes" >&2
  exit 3
fi
[ ! -e "$job/cancelled" ] || exit 3
echo "$SLURM_JOB_ID" >"$job/job_id"
echo "abababababababababababababababababababababababababababababababab  $job/code" | sha256sum --check --status || exit 3
umask 077
# The values of these are known once the job has its nodes.
number=${SLURM_RESTART_COUNT:-0} start=$job/start_$number limit=
names=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 5)
mkdir -p "$start" && echo "$names" >"$start/nodes" && echo "$number" >"$job/last_start" || exit 3
for name in $names; do touch "$start/$name."{facts,commands,begun}; done
touch "$start/orders"
trap : TERM  # Slurm signals every process of the job itself
srun --export=ALL --nodes="$(echo "$names" | wc -l)" --nodelist="$(echo "$names" | paste -sd,)" --ntasks-per-node=1 --job-name=0314-1592-digits-65a3 ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} --mpi=none --kill-on-bad-exit=0 --no-kill --wait=0 --output="${start//\%/%%}/%N.log" \
  python3 -I -X utf8 -c BOOT slurm-task "$job" "$nonce" <"$job/code" &
while kill -0 $! 2>/dev/null; do wait $!; done
stopped=$(python3 -I -X utf8 -c BOOT slurm-verdict "$job" <"$job/code")
code=$?
rm -f "$job/secrets.json"
exit $code
