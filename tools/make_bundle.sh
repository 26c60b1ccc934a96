#!/usr/bin/env bash
# make_bundle.sh OUTPUT.tar.gz BUNDLED_PROGRAMS NAME... -- SCRIPT...
# Packs the programs, stripped and under their names, with the shared libraries that a GPU host need not have, into a
# tarball that runs without Bazel. CUDA's own libraries and the driver's are the host's. Fails above
# 50 MB.
set -euo pipefail
output=$1 program=$2
shift 2
names=()
while [[ $1 != -- ]]; do
  names+=("$1")
  shift
done
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/lockstep
mkdir -p "$root/bin" "$root/lib"
for script in "$@"; do
  name=$(basename "$script")
  [[ $name != gpu_check.py ]] || name=gpu_check
  install -m 755 "$script" "$root/$name"
done
strip -o "$root/bin/lockstep" "$program"
chmod 755 "$root/bin/lockstep"
for name in "${names[@]}"; do
  ln -s lockstep "$root/bin/$name"
done
# "libx.so.1 => /path/libx.so.1 (0x...)"
ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | while read -r library; do
  case $(basename "$library") in
    ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so*) ;;
    libcuda.so* | libcublas* | libcudart.so* | libnccl* | libnvidia*) ;;
    *) strip -o "$root/lib/$(basename "$library")" "$library" ;;
  esac
done
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$scratch" -c lockstep | gzip -9n >"$output"
bytes=$(stat -c %s "$output")
if ((bytes > 50000000)); then
  echo "make_bundle: $output has $bytes bytes, more than the 50 MB that a bundle may have:" >&2
  du -a "$root" | sort -rn | head >&2
  exit 1
fi
