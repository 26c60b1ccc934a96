#!/usr/bin/env bash
# The library of the simulated GPU defines nothing that the program defines: a second copy of core would
# have dispatcher slots and allocators of its own. Only inline functions and variables, which are weak or
# unique, and the stamp may be in both.
set -euo pipefail
library=kernels/libsimulated_gpu.so
if [[ ! -e $library ]]; then
  echo "SKIP: there is no simulated GPU in a build for real ones, nor without nvcc"
  exit 0
fi
defined() { nm -D --defined-only "$1" | awk '$2 ~ /^[TDBR]$/ { print $3 }' | sort -u; }
count=$(defined "$library" | grep -c '^cuda')
if ((count < 50)); then
  echo "FAIL: nm finds only $count functions of CUDA in $library"
  exit 1
fi
both=$(comm -12 <(defined "$library") <(defined models/train_gpt))
if [[ $both != lockstep_simulated_gpu_stamp ]]; then
  echo "FAIL: in both $library and train_gpt, where only the stamp should be:"
  c++filt <<<"$both"
  exit 1
fi
