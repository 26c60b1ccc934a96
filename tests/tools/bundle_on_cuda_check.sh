#!/usr/bin/env bash
# The bundle for real GPUs, on a host whose libraries of CUDA are the simulator under NVIDIA's names: all that such a host
# does but for its driver. The programs choose these libraries, announce their kernels to them, and train.
set -euo pipefail
fail() { echo "FAIL: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
simulator=$(realpath tools/cudasim/ptx/libcudart.so.13)
tar -C "$folder" -xf tools/lockstep-bundle.tar.gz
cd "$folder"
rm lockstep/lib/libcudart.so.*
mkdir lockstep/cuda
# One file, so that the dynamic linker loads it once.
for name in libcudart.so.13 libcublasLt.so.13 libnccl.so.2; do ln -s "$simulator" "lockstep/cuda/$name"; done
runs=0
train() { # [NAME=VALUE...] [-- ARGUMENT...]: sets said and status
  local environment=()
  while (($#)) && [[ $1 != -- ]]; do environment+=("$1") && shift; done
  status=0 runs=$((runs + 1))
  said=$(env -i "PATH=$PATH" "${environment[@]}" lockstep/bin/train_gpt --model.n_layer=1 --model.n_head=2 \
    --model.n_embd=16 --model.block_size=8 --train.batch_size=2 --train.steps=3 --train.eval_batches=1 \
    --train.sample_tokens=0 "--out_dir=$runs" "${@:2}" 2>&1) || status=$?
}
train
[[ $status == 0 && $said == *"on cuda:0"* ]] || fail "auto: $said"
train -- --device=cuda --nproc=2 --train.precision=bf16
[[ $status == 0 && $said == *"on 2 ranks"*"on cuda:0"* ]] || fail "two ranks: $said"

# CUDA does not start: auto never takes the CPU instead, but where there is no GPU. 35 is a driver that is too old: the
# simulator has one.
for error in 34 35 802 803 999; do
  train CUDASIM_STARTUP_ERROR=$error
  [[ $status != 0 && $said == *"CUDA does not start"* ]] || fail "error $error: $said"
done
train CUDASIM_STARTUP_ERROR=100
[[ $status == 0 && $said == *"on cpu"* ]] || fail "no GPU: $said"
