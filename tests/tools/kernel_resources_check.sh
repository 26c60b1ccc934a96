#!/usr/bin/env bash
# No kernel of an op spills registers or uses local memory, by the compiler's own account.
if [[ -z $(find -L kernels -name '*.resources' -print -quit) ]]; then
  echo "SKIPPED: the kernels were built for simulated GPUs, which have no registers; with nvcc at hand:"
  echo "  bazel test --config=cuda //tests/tools:kernel_resources_check"
  exit 0
fi
exec tools/kernel_resources.py --check kernels/_nvcc
