#!/usr/bin/env bash
# What a program prints does not depend on whether it was compiled against the simulator's headers or
# NVIDIA's. Arguments: the folder of the simulator's headers, the program, how many lines it prints, and which of
# NVIDIA's headers it needs.
set -euo pipefail
source tools/find_nvcc.sh
cuda=$(find_toolkit "include/$4")
if [[ -z $cuda ]]; then
  echo "skipped: there is no CUDA toolkit with $4"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
g++ -std=c++20 -O1 -march=x86-64-v3 -I. -isystem "$1" "$2" -o "$work/ours"
g++ -std=c++20 -O1 -march=x86-64-v3 -I. -isystem "$cuda/include" "$2" -o "$work/theirs"
"$work/ours" > "$work/ours.txt"
"$work/theirs" > "$work/theirs.txt"
wc -l < "$work/ours.txt" | grep -qx "$3" || { echo "the dump is incomplete"; exit 1; }
diff "$work/theirs.txt" "$work/ours.txt" && echo "the same as $cuda/include"
