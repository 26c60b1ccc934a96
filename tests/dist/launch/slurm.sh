#!/usr/bin/env bash
# Trains on ranks that Slurm starts, in a temporary cluster of this machine, which is both its nodes.
#   bazel build -c opt //models:train_gpt
#   tests/dist/launch/slurm.sh bazel-bin/models/train_gpt
# A run through srun must end with the weights of one process; if a rank is killed, the others must
# name it, and the same srun command must then resume to the same weights; and so must the job of
# models/examples/clusters/train.sbatch, which is warned and puts itself back into the queue. A step
# on both nodes, with unequal numbers of tasks, and two steps at a time, on a node each, must train
# to the same weights. Needs root and
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
# Exits with 77 and a reason if there is no Slurm.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
program=$(realpath "${1:?"the path of train_gpt"}")
script=$(dirname "$0")/../../../models/examples/clusters/train.sbatch
for tool in slurmctld slurmd srun sinfo munged; do
  command -v "$tool" >/dev/null || { echo "slurm: there is no $tool" >&2; exit 77; }
done
((EUID == 0)) || { echo "slurm: slurmd must be started by root" >&2; exit 77; }

dir=$(mktemp -d)
daemons=()
cleanup() {
  ((${#daemons[@]})) && kill "${daemons[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
fail() { echo "slurm: $1" >&2; tail -n 20 "$dir"/*.log >&2; exit 1; }

host=$(hostname -s)
chmod 755 "$dir"
mkdir -p "$dir/munge" "$dir/ctld" "$dir/spool-$host" "$dir/spool-localhost"
chmod 700 "$dir/munge"
head -c 1024 /dev/urandom >"$dir/munge/key"
chmod 600 "$dir/munge/key"
cat >"$dir/slurm.conf" <<CONF
ClusterName=lockstep
SlurmctldHost=$host
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=10
CredType=cred/munge
SlurmUser=root
SlurmctldPort=26817
StateSaveLocation=$dir/ctld
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$host NodeHostname=$host Port=26818 CPUs=4 State=UNKNOWN
NodeName=localhost NodeHostname=$host NodeAddr=127.0.0.1 Port=26819 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$dir/slurm.conf
munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge.socket" \
  --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" \
  >"$dir/munged.log" 2>&1 &
daemons+=($!)
slurmctld -D -c -f "$dir/slurm.conf" >"$dir/slurmctld.log" 2>&1 &
daemons+=($!)
for node in "$host" localhost; do
  slurmd -D -N "$node" -f "$dir/slurm.conf" >"$dir/slurmd-$node.log" 2>&1 &
  daemons+=($!)
done
for ((i = 0; i < 600; ++i)); do
  [[ $(sinfo --noheader --format="%t %D" 2>/dev/null) == "idle 2" ]] && break
  sleep 0.1
done
((i < 600)) || fail "the cluster did not start within a minute"

export LOCKSTEP_SECRET=slurm
options=(--train.steps=300 --device=cpu --model.n_layer=1 --model.n_head=2 --model.n_embd=16
  --model.block_size=16 --train.batch_size=2 --train.global_batch_size=8 --train.eval_every=0
  --train.sample_tokens=0 --train.log_every=1 --checkpoint.every=20 --dist.reduction=ordered
  --dist.timeout=60 --threads=1)
ranks() {
  srun --label --ntasks=4 bash -c 'echo process $$; exec "$@"' rank "$program" "${options[@]}" "$@"
}
weights() { sha256sum <"$dir/$1/checkpoints/step-00000300/model.safetensors"; }

"$program" "${options[@]}" --out_dir="$dir/alone" >"$dir/alone.log" 2>&1 || fail "one process failed"
ranks --out_dir="$dir/srun" >"$dir/srun.log" 2>&1 || fail "srun failed"
[[ $(weights srun) == "$(weights alone)" ]] || fail "srun's weights differ from those of one process"
echo "srun: the weights of one process"

ranks --out_dir="$dir/killed" >"$dir/killed.log" 2>&1 &
job=$!
for ((i = 0; i < 1200; ++i)); do
  grep -qE '^0: step +25/' "$dir/killed.log" && break
  sleep 0.05
done
kill -9 "$(sed -n 's/^2: process //p' "$dir/killed.log")" || fail "there is no rank 2 to kill"
wait "$job" && fail "srun ended well although rank 2 was killed"
for rank in 0 1 3; do
  grep -qE "^$rank: train_gpt: .*rank 2 is gone" "$dir/killed.log" || fail "rank $rank did not name rank 2"
done
echo "a killed rank: named by all others"
ranks --out_dir="$dir/killed" >"$dir/again.log" 2>&1 || fail "the second srun failed"
grep -q 'resuming from' "$dir/again.log" || fail "the second srun did not resume"
[[ $(weights killed) == "$(weights alone)" ]] || fail "the weights differ after a restart"
echo "srun again: resumed, to the same weights"

# As with --gpus-per-task=1: each rank sees one device.
few=("${options[@]/--train.steps=300/--train.steps=4}")
few_sim=("${few[@]/--device=cpu/--device=sim}")
CUDASIM_DEVICES=1 CUDA_VISIBLE_DEVICES=0 srun --ntasks=2 "$program" "${few_sim[@]}" \
  --out_dir="$dir/gpus" >"$dir/gpus.log" 2>&1 || fail "ranks that see one device each failed"
echo "one visible device: used by its rank"

cat >"$dir/steps.sbatch" <<STEPS
#!/bin/bash
for node in "$host" localhost; do
  srun --exact --nodes=1 --nodelist=\$node --ntasks=2 "$program" ${few[*]} \
    --out_dir="$dir/on-\$node" >"$dir/on-\$node.log" 2>&1 &
done
wait -n && wait -n || exit
printf '%s\n' "$host" "$host" "$host" localhost >"$dir/hosts"
SLURM_HOSTFILE=$dir/hosts srun --distribution=arbitrary --ntasks=4 "$program" ${few[*]} \
  --out_dir="$dir/on-both" >"$dir/on-both.log" 2>&1
STEPS
sbatch --wait --nodes=2 --ntasks=8 --output="$dir/steps.log" "$dir/steps.sbatch" >/dev/null ||
  fail "the steps of a job failed"
for node in localhost both; do
  cmp "$dir"/on-{"$host","$node"}/checkpoints/step-00000004/model.safetensors ||
    fail "the weights of the steps differ"
done
echo "two steps of a job, and one with unequal numbers of tasks: the same weights"

# One node without GPUs.
sed -E '/nodes=|-per-node=/d; s/per-task=8/per-task=1/' "$script" >"$dir/train.sbatch"
ln -s "$program" "$dir/train_gpt"
job=$(PATH=$dir:$PATH sbatch --parsable --nodes=1 --ntasks=4 --output="$dir/batch.log" "$dir/train.sbatch" \
  "${options[@]}" --out_dir="$dir/batch")
for ((i = 0; i < 1200; ++i)); do
  grep -qE '^step +25/' "$dir/batch.log" 2>/dev/null && break
  sleep 0.05
done
scancel --signal=USR1 "$job" || fail "there is no job to warn"
for ((i = 0; i < 3000; ++i)); do
  [[ -e $dir/batch/checkpoints/step-00000300/DONE ]] && break
  sleep 0.1
done
grep -q 'interrupted after step' "$dir/batch.log" || fail "the warning did not end the run"
grep -q 'resuming from' "$dir/batch.log" || fail "the job did not come back"
[[ $(weights batch) == "$(weights alone)" ]] || fail "the weights differ after the job came back"
echo "a job that was warned: put back into the queue, to the same weights"
