#!/usr/bin/env bash
# What nvcc makes of a program runs on the machine as it is. Arguments: the program, and the library.
set -euo pipefail
source=$1 library=$(realpath "$2")
source tools/find_nvcc.sh
cuda=$(find_toolkit bin/nvcc)
if [[ -z $cuda ]]; then
  echo "skipped: there is no nvcc of CUDA 13"
  exit 0
fi
if ldd "$library" | grep -qE 'lib(a|t|ub)san'; then
  echo "skipped: a sanitizer's library needs a program that has the sanitizer, too"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work CUDASIM_LEAKS=error
"$cuda/bin/nvcc" -arch=compute_80 -lineinfo -c "$source" -o "$work/program.o"

cat >"$work/expected" <<'END'
y[0] 1.0, y[500] 1001.0, sum 956428.0
from the device: 13 and 2.5
55 4181, 2 launches
END

check() {  # NAME PROGRAM...: what it prints
  # With what the loader has to say, as that a function lacks NVIDIA's version.
  "${@:2}" >"$work/said" 2>&1 || { echo "$1: it failed"; cat "$work/said"; exit 1; }
  diff "$work/expected" "$work/said" || { echo "$1: it printed something else"; exit 1; }
  echo "$1: right"
}

mkdir "$work/simulated"
ln -s "$library" "$work/simulated/libcudart.so.13"
ln -s "$library" "$work/simulated/libcudart.so"
g++ "$work/program.o" -L"$work/simulated" -lcudart -o "$work/linked"
check "linked" env LD_LIBRARY_PATH="$work/simulated" "$work/linked"
check "in random turns" env LD_LIBRARY_PATH="$work/simulated" CUDASIM_ORDER=random:3 "$work/linked"

if "$cuda/bin/nvcc" -arch=compute_80 -cudart shared "$work/program.o" -o "$work/shared" 2>"$work/link"; then
  check "by LD_LIBRARY_PATH" env LD_LIBRARY_PATH="$work/simulated" "$work/shared"
  check "by LD_PRELOAD" env LD_PRELOAD="$library" "$work/shared"
else
  echo "skipped: there is no shared libcudart to link with"
fi
