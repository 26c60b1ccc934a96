#!/usr/bin/env bash
# The bundle for simulated GPUs, unpacked elsewhere: gpu_check plays everything, and what it computes again is the same.
set -euo pipefail
fail() { echo "FAIL: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -xf tools/lockstep-bundle.tar.gz
cd "$folder"
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
