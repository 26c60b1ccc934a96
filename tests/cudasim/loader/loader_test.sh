#!/usr/bin/env bash
# One program of nvcc's runs on the simulator and on NVIDIA's runtime, as it chooses, and has its ranges in profilers.
# Arguments: the program, the profiler, the simulator, and the loader's sources.
set -euo pipefail
program=$1 profiler=$2 simulator=$(realpath "$3")
shift 3
source tools/find_nvcc.sh
cuda=$(find_toolkit bin/nvcc)
if [[ -z $cuda ]]; then
  echo "skipped: there is no nvcc of CUDA 13"
  exit 0
fi
if ldd "$simulator" | grep -qE 'lib(a|t|ub)san'; then
  echo "skipped: a sanitizer's library needs a program that has the sanitizer, too"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work CUDASIM_LEAKS=error
"$cuda/bin/nvcc" -std=c++20 -O1 -arch=compute_80 -I. -c "$program" -o "$work/program.o"
g++ -std=c++20 -I. -Itools/cudasim/include "$work/program.o" "$@" -ldl -Wl,-rpath,"$cuda/lib64" -o "$work/program"

expect() {  # NAME LINE...: what $work/said is
  printf '%s\n' "${@:2}" | diff - "$work/said" || { echo "$1: it printed something else"; exit 1; }
  echo "$1: right"
}
# 0 * 1 + 1 * 2 + 2 * 3 + 3 * 4 + 4 * 1 ..., and what a range is without a profiler.
"$work/program" "$simulator" >"$work/said"
expect "simulated" "before: no CUDA runtime is loaded" "ranges: -2 -2 -2 -2" "after: 1250000"

# A library that lacks a function is left alone.
sed 's/__cudaRegisterVar/__cudaRegisterVax/g' "$simulator" >"$work/lacking.so"
"$work/program" "$work/lacking.so" >"$work/said"
expect "lacking a function" "before: no CUDA runtime is loaded" "ranges: -2 -2 -2 -2" \
  "__cudaRegisterVar is missing" "after: no CUDA runtime is loaded"

"$work/program" >"$work/said"
after=$(tail -n 1 "$work/said")
case $after in
  *" 1250000" | *"CUDA driver version is insufficient"* | *"no CUDA-capable device"*) ;;
  *) echo "NVIDIA's runtime: $after"; exit 1 ;;
esac
expect "NVIDIA's runtime" "before: no CUDA runtime is loaded" "ranges: -2 -2 -2 -2" "$after"
echo "$after"

if [[ -e $cuda/include/nvtx3/nvToolsExt.h ]]; then
  g++ -std=c++20 -shared -fPIC -isystem "$cuda/include" "$profiler" -o "$work/profiler.so"
  NVTX_INJECTION64_PATH=$work/profiler.so "$work/program" "$simulator" >"$work/said"
  expect "profiled" "before: no CUDA runtime is loaded" "ranges: 0 1 1 0" "after: 1250000"
fi
