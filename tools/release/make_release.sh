#!/usr/bin/env bash
# make_release.sh MANIFEST OUTPUT.tar.gz
# Makes libraries, programs and a folder that g++, pkg-config and CMake use, from what a build without
# Bazel's rules cannot know: MANIFEST has a line for each file and flag (tools/bazel/release.bzl).
#
# Kernels register themselves, so no object may be left out of a program for want of a reference: the
# static library is one object. The shared library exports Lockstep's names only, so that a program may
# use another version of what Lockstep was built with. Its own calls stay inside it: what a program
# compiled of an inline function, with flags of its own, does not change Lockstep's bits.
set -euo pipefail
manifest=$1 output=$2
here=$(dirname "$0")
source "$here/../archive.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# field NAME: the rest of the lines that begin with it.
field() { sed -n "s/^$1 //p" "$manifest"; }

version=$(field version)
# What programs are linked with works with all versions that have these numbers in common.
compatible=${version%%.*}
[[ $compatible != 0 ]] || compatible=${version%.*}
mapfile -t archives < <(field archive)
mapfile -t linkopts < <(field linkopt)
root=$scratch/lockstep-$version
mkdir -p "$root/bin" "$root/lib/pkgconfig" "$root/lib/cmake/lockstep"

# --- Headers ----------------------------------------------------------------------------------------

# Their includes begin with lockstep/, so that a program needs no other folder than include.
folders=$(field header | sed -nE 's|^lockstep/([^/ ]+)/.*|\1|p' | sort -u | paste -sd '|')
while read -r name file; do
  mkdir -p "$root/include/${name%/*}"
  sed -E "s@^( *# *include \")($folders)/@\1lockstep/\2/@" "$file" >"$root/include/$name"
done < <(field header)
while read -r name; do
  if [[ ! -f $root/include/$name ]]; then
    echo "make_release: the headers include \"$name\", which is not among them" >&2
    exit 1
  fi
done < <(grep -rhoE '^ *# *include "[^"]+"' "$root/include" | cut -d '"' -f 2 | sort -u)

# --- Examples ---------------------------------------------------------------------------------------

# Programs, whose includes are changed as those of the headers are, and pages, without their links to
# files that are not here.
mkdir -p "$root/examples/clusters"
while read -r file; do
  name=${file##*/}
  if [[ $file == */clusters/* ]]; then name=clusters/$name; fi
  sed -E -e 's@^( *# *include ")models/examples/@\1@' -e "s@^( *# *include \")($folders)/@\1lockstep/\2/@" \
    -e 's@\[([^]]*)\]\(\.\./[^)]*\)@\1@g' "$file" >"$root/examples/$name"
done < <(field example)

# --- Libraries --------------------------------------------------------------------------------------

object=$scratch/lockstep.o
ld -r -o "$object" --whole-archive "${archives[@]}"
library=$root/lib/liblockstep.so.$version
g++ -shared -s -o "$library" "$object" -Wl,-soname,"liblockstep.so.$compatible" \
  -Wl,--version-script="$here/exports.map" -Wl,-Bsymbolic-functions -Wl,-z,defs "${linkopts[@]}"
ln -s "${library##*/}" "$root/lib/liblockstep.so.$compatible"
ln -s "${library##*/}" "$root/lib/liblockstep.so"
# The stand-ins for CUDA's functions, which find the simulated GPU, are not meant for other code.
objcopy --strip-debug --wildcard --localize-symbol='cuda*' --localize-symbol='__cuda*' --localize-symbol='cublas*' \
  --localize-symbol='nccl*' --localize-symbol='_ZN7cudasim*' "$object"
ar rcsD "$root/lib/liblockstep.a" "$object"
while read -r plugin; do
  strip -o "$root/lib/${plugin##*/}" "$plugin"
done < <(field plugin)

# --- Programs ---------------------------------------------------------------------------------------

while read -r name main; do
  g++ -s -o "$root/bin/$name" -Wl,--whole-archive "$main" -Wl,--no-whole-archive -L"$root/lib" -llockstep \
    -Wl,-rpath,'$ORIGIN/../lib' -Wl,--as-needed "${linkopts[@]}"
done < <(field program)

# --- How to use it ----------------------------------------------------------------------------------

# The packages of the libraries that are linked with, and of those whose headers are included. In
# repositories.bzl, each has a name, a package and a header.
packages() {
  awk -F '"' -v linked=" $(field system | paste -sd ' ') " \
    -v included=" $(grep -rhoE '^ *# *include <[^/>]+/' "$root/include" | sed 's/.*<//' | sort -u | paste -sd ' ') " '
    $1 ~ /^ *name = $/ { name = $2 }
    $1 ~ /^ *apt = $/ { apt = $2 }
    $1 ~ /^ *header = $/ {
      folder = $2
      sub(/\/.*/, "/", folder)
      if (index(linked, " " name " ") || index(included, " " folder " ")) print apt
    }' "$here/../bazel/repositories.bzl" | paste -sd ' '
}
needed=$(objdump -p "$library" | awk '$1 == "NEEDED" { print $2 }' | grep -vE '^(libc|libm|libstdc\+\+|libgcc_s|ld-linux.*)\.so')

# fill TEMPLATE DESTINATION
fill() {
  sed -e "s|@VERSION@|$version|g" -e "s|@COMPATIBLE@|$compatible|g" -e "s|@COPTS@|$(field copt | paste -sd ' ')|g" \
    -e "s|@LINKOPTS@|${linkopts[*]}|g" -e "s|@LINKOPT_LIST@|$(field linkopt | paste -sd ';')|g" \
    -e "s|@COPT_LIST@|$(field copt | paste -sd ';')|g" \
    -e "s|@PACKAGES@|$(packages)|g" -e "s|@NEEDED@|$(paste -sd ' ' <<<"$needed")|g" \
    -e "s|@COMPILER@|$(g++ -dumpfullversion)|g" -e "s|@PROGRAMS@|$(field program | cut -d ' ' -f 1 | paste -sd ' ')|g" \
    -e "s|@GLIBC@|$(newest_version GLIBC "$library")|g" -e "s|@GLIBCXX@|$(newest_version GLIBCXX "$library")|g" \
    "$here/$1" >"$2"
}
fill lockstep.pc.in "$root/lib/pkgconfig/lockstep.pc"
fill lockstep-static.pc.in "$root/lib/pkgconfig/lockstep-static.pc"
fill lockstepConfig.cmake.in "$root/lib/cmake/lockstep/lockstepConfig.cmake"
fill lockstepConfigVersion.cmake.in "$root/lib/cmake/lockstep/lockstepConfigVersion.cmake"
fill README.md.in "$root/README.md"
echo "$version" >"$root/VERSION"
while read -r file; do
  install -m 644 "$file" "$root/"
done < <(field file)
copy_licenses "$root/licenses"
chmod -R u=rwX,go=rX "$root"
pack "$root" "$output"
