#!/usr/bin/env bash
# make_cuda_libraries.sh BUNDLE.tar.gz OUTPUT.tar.gz
# Packs the libraries of CUDA that the programs of a bundle use, for hosts with nothing but a driver:
# unpacked where the bundle was, they are in lockstep/cuda, where the programs look first. It has
# those that the programs load (CUDA's runtime, cuBLASLt, cuDNN, NCCL), and those that these load in
# turn: cuDNN's parts for graphs, and NVRTC. Takes them from LD_LIBRARY_PATH's
# folders, the toolkit (CUDA_HOME), or where the dynamic linker finds them. For your own hosts:
# NVIDIA's licenses hold.
set -euo pipefail
source "$(dirname "$0")/archive.sh"
if (($# != 2)); then
  echo "usage: make_cuda_libraries.sh BUNDLE.tar.gz OUTPUT.tar.gz" >&2
  exit 2
fi
bundle=$1 output=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/lockstep
mkdir -p "$root/cuda"
tar -C "$scratch" -xf "$bundle" lockstep/bundle.json lockstep/lib
loads=$(sed -n 's/^ "loads": "\(.*\)",$/\1/p' "$root/bundle.json")
if [[ -z $loads ]]; then
  echo "make_cuda_libraries: the programs of $bundle use no library of CUDA; build it with --config=cuda" >&2
  exit 1
fi
version=${loads##*.}

IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}:${CUDA_HOME:-/usr/local/cuda}/lib64"
while read -r file; do
  folders+=("$(dirname "$file")")
done < <(PATH=$PATH:/sbin ldconfig -p | awk '$1 ~ /^lib(cublas|cudart|cudnn|nccl|nvrtc)/ { print $NF }' | sort -u)

# Copies the first of the files that match the name.
missing=()
copy() {
  local folder file
  if [[ -e $root/lib/$1 ]]; then return; fi  # the bundle has it
  for folder in "${folders[@]}"; do
    [[ -n $folder ]] || continue
    for file in "$folder"/$1; do
      [[ -e $file ]] || continue
      cp -L "$file" "$root/cuda/"
      return
    done
  done
  missing+=("$1")
}
for name in $loads libcudnn.so.9 libcudnn_{graph,heuristic,engines_precompiled,engines_runtime_compiled}.so.9 \
  libnccl.so.2 "libnvrtc.so.$version" "libnvrtc-builtins.so.$version.*"; do
  copy "$name"
done
if ((${#missing[@]} > 0)); then
  echo "make_cuda_libraries: not found: ${missing[*]}; install them, or add their folders to LD_LIBRARY_PATH" >&2
  exit 1
fi
rm -r "$root/bundle.json" "$root/lib"
pack "$root" "$output" 1
