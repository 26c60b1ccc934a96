#!/usr/bin/env bash
# The compiled kernels of the ops pass `tools/$1 --check`.
if [[ -z $(find -L kernels -name '*.resources' -print -quit) ]]; then
  echo "SKIPPED: the kernels were built for simulated GPUs, which have no machine code; with nvcc installed:"
  echo "  bazel test --config=cuda $TEST_TARGET"
  exit 0
fi
exec "tools/$1" --check kernels/_nvcc
