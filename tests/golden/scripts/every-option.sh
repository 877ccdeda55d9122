#!/bin/bash
#SBATCH --job-name=0314-1592-digits-65a3
#SBATCH --comment=0314-1592-digits-65a3
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --partition=gpu,long
#SBATCH --account=acme
#SBATCH --qos=high
#SBATCH --time=1-12:00:00
#SBATCH '--constraint=a100&ib'
#SBATCH '--nodelist=n[1-2]'
#SBATCH '--exclude=n3,n[5-7]'
#SBATCH '--reservation=a course'
#SBATCH --licenses=foo:4
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=24
#SBATCH --mem=48G
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/ada/.runner/runs/0314-1592-digits-65a3/.slurm/batch.log
#SBATCH --export=NONE
#SBATCH --exclusive
#SBATCH '--mail-user=ada o'"'"'hara@example.com'
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
names=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 2)
mkdir -p "$start" && echo "$names" >"$start/nodes" && echo "$number" >"$job/last_start" || exit 3
for name in $names; do touch "$start/$name."{facts,commands,begun}; done
touch "$start/orders"
trap : TERM  # Slurm signals every process of the job itself
srun --export=ALL --nodes="$(echo "$names" | wc -l)" --nodelist="$(echo "$names" | paste -sd,)" --ntasks-per-node=1 --job-name=0314-1592-digits-65a3 ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} --mpi=none --kill-on-bad-exit=0 --wait=0 --output="${start//\%/%%}/%N.log" \
  python3 -I -X utf8 -c BOOT slurm-task "$job" "$nonce" <"$job/code" &
while kill -0 $! 2>/dev/null; do wait $!; done
stopped=$(python3 -I -X utf8 -c BOOT slurm-verdict "$job" <"$job/code")
code=$?
rm -f "$job/secrets.json"
exit $code
