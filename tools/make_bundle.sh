#!/usr/bin/env bash
# make_bundle.sh OUTPUT.tar.gz SCRIPT... -- PROGRAM...
# Packs programs, stripped, with the shared libraries that a GPU host need not have, into a tarball
# that runs without Bazel. CUDA's own libraries and the driver's are the host's. Fails above 50 MB.
set -euo pipefail
output=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/lockstep
mkdir -p "$root/bin" "$root/lib"
while [[ $1 != -- ]]; do
  name=$(basename "$1")
  [[ $name != gpu_check.py ]] || name=gpu_check
  install -m 755 "$1" "$root/$name"
  shift
done
shift
for program in "$@"; do
  name=$(basename "$program")
  [[ $name != op_cuda_test ]] || name=op_test
  strip -o "$root/bin/$name" "$program"
  chmod 755 "$root/bin/$name"
  # "libx.so.1 => /path/libx.so.1 (0x...)"
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | while read -r library; do
    case $(basename "$library") in
      ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so*) ;;
      libcuda.so* | libcublas* | libcudart.so* | libnccl* | libnvidia*) ;;
      *) [[ -e $root/lib/$(basename "$library") ]] || strip -o "$root/lib/$(basename "$library")" "$library" ;;
    esac
  done
done
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$scratch" -c lockstep | gzip -9n >"$output"
bytes=$(stat -c %s "$output")
if ((bytes > 50000000)); then
  echo "make_bundle: $output has $bytes bytes, more than the 50 MB that a bundle may have:" >&2
  du -a "$root" | sort -rn | head >&2
  exit 1
fi
