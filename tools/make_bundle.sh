#!/usr/bin/env bash
# make_bundle.sh OUTPUT.tar.gz BUNDLED_PROGRAMS simulated|cuda CUDA_ARCHS NAME... -- FILE...
# Packs the programs, stripped and under their names, and the shared libraries that a GPU host may
# lack, into a tarball that runs without Bazel; bundle.json says what the host needs. The host
# provides the driver and the libraries of CUDA but for its runtime, and also glibc and libstdc++: those of the
# build machine might need a later glibc than everything else does. The programs look for libraries in the
# bundle's folders lib and cuda (which make_cuda_libraries.sh fills), not in the build machine's
# toolkit, whose folder the linker put into them: on a host with such a folder it would take precedence over
# LD_LIBRARY_PATH. What is called is bundle_start.sh, which says what a host lacks. Of the files, those in Python are
# gpu_check's, and the others lie at the top. Fails above 50 MB.
set -euo pipefail
shopt -s nullglob
source "$(dirname "$0")/archive.sh"
output=$1 program=$2 backend=$3 architectures=$4
shift 4
names=()
while [[ $1 != -- ]]; do
  names+=("$1")
  shift
done
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/lockstep
mkdir -p "$root/bin" "$root/lib" "$root/libexec" "$root/checks"
for file in "$@"; do
  case $file in
    *.py) install -m 644 "$file" "$root/checks" ;;
    *) install -m 644 "$file" "$root" ;;
  esac
done
ln -s libexec/start "$root/gpu_check"
program_there=$root/libexec/lockstep
strip -o "$program_there" "$program"
chmod 755 "$program_there"
# What simulated GPUs need is in the programs; for real ones they load these.
version=null loads=
if [[ $backend == cuda ]]; then
  version=$(grep -aoE 'libcudart\.so\.[0-9]+' "$program" | sort -u | tail -n 1 | sed 's/.*\.//' || true)
  if [[ -z $version ]]; then
    echo "make_bundle: $program does not load CUDA's runtime; build it with --config=cuda" >&2
    exit 1
  fi
  loads="libcudart.so.$version libcublasLt.so.$version"
  # The runtime is small, and the toolkit's folder is in the program's run path.
  IFS=: read -ra folders <<<"$(objdump -p "$program" | awk '$1 ~ /^(RPATH|RUNPATH)$/ { print $2; exit }')"
  for folder in "${folders[@]}"; do
    if [[ -e $folder/libcudart.so.$version ]]; then
      cp -L "$folder/libcudart.so.$version" "$root/lib/"
      # PyPI's toolkit has them here; a system's are its package's.
      if [[ -d $folder/../licenses ]]; then
        mkdir -p "$root/licenses"
        cp "$folder"/../licenses/*runtime* "$root/licenses/"
      fi
      break
    fi
  done
fi
# Cuts the string off after the bundle's folders.
perl -0777 -pi -e 's{(?<=\$ORIGIN/\.\./lib:\$ORIGIN/\.\./cuda)(:[^\0]*)(?=\0)}{"\0" x length $1}ge' "$program_there"
install -m 755 "$(dirname "$0")/bundle_start.sh" "$root/libexec/start"
for name in "${names[@]}"; do
  ln -s lockstep "$root/libexec/$name"
  ln -s ../libexec/start "$root/bin/$name"
done
# "libx.so.1 => /path/libx.so.1 (0x...)"; the driver's libraries may be missing here.
ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | while read -r library; do
  case $(basename "$library") in
    ld-linux* | libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so*) ;;
    libstdc++.so* | libgcc_s.so*) ;;
    libcuda.so* | libcublas* | libcudart.so* | libnccl* | libnvidia*) ;;
    *) strip -o "$root/lib/$(basename "$library")" "$library" ;;
  esac
done
packages=()
for library in "$root"/lib/*; do
  packages+=("$(dpkg -S "*/${library##*/}" 2>/dev/null | sed 's/:.*//; q' || true)")
done
copy_licenses "$root/licenses" "${packages[@]}"

cat >"$root/bundle.json" <<JSON
{
 "build": "$(cat "$program_there" "$root"/checks/*.py | sha256sum | head -c 16)",
 "backend": "$backend",
 "cuda": $version,
 "loads": "$loads",
 "architectures": "$architectures",
 "glibc": "$(newest_version GLIBC "$program_there" "$root"/lib/*)",
 "glibcxx": "$(newest_version GLIBCXX "$program_there" "$root"/lib/*)"
}
JSON
pack "$root" "$output"
bytes=$(stat -c %s "$output")
if ((bytes > 50000000)); then
  echo "make_bundle: $output has $bytes bytes, more than the 50 MB allowed for a bundle:" >&2
  du -a "$root" | sort -rn | head >&2
  exit 1
fi
