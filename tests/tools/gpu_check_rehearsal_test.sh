#!/usr/bin/env bash
# The bundle for simulated GPUs, unpacked elsewhere: gpu_check plays everything, and what it computes again is the same.
set -euo pipefail
fail() { echo "FAIL: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -xf tools/lockstep-bundle.tar.gz
cd "$folder"
if ! readelf -SW lockstep/libexec/lockstep | grep -F .nv_fatbin >/dev/null; then
  echo "skipped: without nvcc no GPU is simulated"
  exit 0
fi
# No environment but the path: not this test's, nor one with CUDA.
check() { env -i "PATH=$PATH" lockstep/gpu_check --simulated --patience=10 "$@"; }
hashes() { tar xOf gpu_check.tar.gz --wildcards '*/hashes.txt'; }
check --budget=540 || fail "not everything passed"
hashes >first
[[ $(grep -c '^#' first) == 4 && $(grep -c / first) -gt 50 ]] || fail "$(cat first)"
check --again --only=ops >/dev/null || fail "ops did not pass again"
hashes | diff first - || fail "the hashes do not repeat"
env -i "PATH=$PATH" bash -c "source env.sh; cd /; op_test --device=sim --gtest_filter='scale.*'" >/dev/null ||
  fail "with env.sh a program does not run"
# Commands that a program tells are those of bin, also where gpu_check or another program started it.
tiny="--device=cpu --model.n_layer=1 --model.n_embd=32 --train.steps=1 --train.eval_every=0 --train.eval_batches=1
  --train.sample_tokens=0"
for program in bin/train_gpt libexec/train_gpt; do
  env -i "PATH=$PATH" lockstep/$program $tiny --out_dir=${program%/*} | grep 'lockstep/bin/sample_gpt ' >/dev/null ||
    fail "$program tells another command"
done
status=0
said=$(env -i "PATH=$PATH" lockstep/bin/op_test --device=cuda 2>&1) || status=$?
[[ $status == 2 && $said == *"this build simulates its GPUs"* ]] || fail "op_test exited with $status: $said"
status=0
said=$(env -i "PATH=$PATH" lockstep/bin/op_test --devise=sim 2>&1) || status=$?
[[ $status == 2 && $said == *"'--devise=sim' is not an option"* ]] || fail "op_test exited with $status: $said"
