#!/usr/bin/env bash
# release_test.sh ARCHIVE: what users do with it, in an empty folder and without Bazel: a program that trains,
# by g++ and pkg-config and by CMake, with the shared and the static library.
# (grep reads to the end: with -q, what writes to it could be ended by SIGPIPE, which pipefail reports.)
set -euo pipefail
fail() { echo "FAIL: $*" >&2; exit 1; }
if (($# == 0)); then
  echo "SKIP: a build with sanitizers has no archive"
  exit 0
fi
archive=$(readlink -f "$1") sources=$(dirname "$(readlink -f "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Everything in the usual folders but Bazel.
mkdir "$folder/tools"
find /usr/bin/ /bin/ -mindepth 1 -maxdepth 1 ! -name '*bazel*' -exec ln -sft "$folder/tools" {} +
PATH=$folder/tools
if command -v bazel bazelisk; then fail "Bazel is in PATH"; fi
cd "$folder"
tar -xf "$archive"
root=$folder/$(echo lockstep-*)
version=$(cat "$root/VERSION")

# --- What is in it ------------------------------------------------------------------------------------

[[ $root == "$folder/lockstep-$version" && $archive == *"-$version.tar.gz" ]] || fail "$version is not $root"
grep '^## ' "$root/CHANGELOG.md" | head -n 1 | grep -xF "## $version" >/dev/null || fail "CHANGELOG.md begins with another version"
grep 'MIT License' "$root/LICENSE" >/dev/null || fail "there is no license"
if grep -rn '@[A-Z_]*@' "$root/README.md" "$root/lib/pkgconfig" "$root/lib/cmake"; then fail "these were not filled in"; fi
grep 'apt-get install .*libdnnl-dev' "$root/README.md" >/dev/null || fail "README.md does not say what is needed"
for program in "$root"/bin/*; do
  "$program" --help >/dev/null || fail "$program --help"
done
grep -i 'mozilla public license' "$root/licenses/libeigen3-dev" >/dev/null || fail "the licence of Eigen is missing"
# From elsewhere: the program finds the library in its own folder.
(cd / && "$root/bin/train_gpt" --train.steps=2 --optim.warmup=1 --train.eval_every=0 "--out_dir=$folder/run" >/dev/null) || fail "train_gpt does not train"

# Examples include what is there, and pages link to it.
for page in README.md pytorch.md torchrun.md torch_differences.md clusters/README.md clusters/jobset.yaml; do
  [[ -f $root/examples/$page ]] || fail "there is no examples/$page"
done
while read -r name; do
  [[ -f $root/include/$name || -f $root/examples/$name ]] || fail "an example includes $name, which is not there"
done < <(sed -nE 's/^#include "(.*)"$/\1/p' "$root"/examples/*.{cc,h} | sort -u)
if grep -n '](\.\./' "$root"/examples/*.md; then fail "these links lead out of the archive"; fi

# not_ours: of the symbols read, those that are not in namespace lockstep.
not_ours() {
  sed -E 's/^_Z(G[VR]|T[VTISHWC]|Th[n0-9]+_|Tv[n0-9]+_[n0-9]+_)?Z{0,2}N[KRO]*8lockstep/lockstep_/' | grep -v '^lockstep_' || true
}
exports() { nm -D --defined-only "$1" | awk '{ print $NF }'; }
library=$root/lib/liblockstep.so
others=$(exports "$library" | not_ours)
[[ -z $others ]] || fail "liblockstep.so also exports: $(c++filt <<<"$others")"
count=$(exports "$library" | wc -l)
((count > 1000)) || fail "liblockstep.so exports $count symbols"
# The check finds what is not ours.
[[ $(printf '_ZNSt6vectorIN8lockstep6TensorEE4sizeEv\ncudaMalloc\n_ZTVN8lockstep4NodeE\n' | not_ours | wc -l) == 2 ]] || fail "this test is wrong"
# Nor does the static library define other names that a program may define: what templates and inline functions
# of libraries leave behind, which is weak, may be in both.
others=$(nm --defined-only "$root/lib/liblockstep.a" | awk '$2 ~ /^[TDBR]$/ { print $3 }' | not_ours)
[[ -z $others ]] || fail "liblockstep.a also defines: $(c++filt <<<"$others")"

# --- A program ----------------------------------------------------------------------------------------

mkdir user
cp "$sources/mlp.cc" "$sources/CMakeLists.txt" user
cd user
run() { "$@" || fail "$* failed"; }
if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$root/lib/pkgconfig
  [[ $(pkg-config --modversion lockstep) == "$version" ]] || fail "pkg-config says $(pkg-config --modversion lockstep)"
  # shellcheck disable=SC2046
  {
    g++ -O2 -Wall -Werror -c mlp.cc $(pkg-config --cflags lockstep)
    g++ mlp.o $(pkg-config --libs lockstep) -o mlp
    g++ mlp.o $(pkg-config --libs lockstep-static) -o mlp-static
  }
  # shellcheck disable=SC2046
  g++ -O2 "$root/examples/small_gpt.cc" $(pkg-config --cflags --libs lockstep) -o small_gpt
  [[ $(run ./small_gpt) == "step 10  loss "* ]] || fail "examples/small_gpt.cc does not train"
  ldd mlp | grep "liblockstep.so.* => $root/lib" >/dev/null || fail "mlp uses $(ldd mlp)"
  if ldd mlp-static | grep liblockstep; then fail "mlp-static is not static"; fi
  echo "pkg-config: $(run ./mlp)"
  [[ $(run ./mlp) == "lockstep $version: "* ]] || fail "the headers have another version"
  [[ $(run ./mlp) == "$(run ./mlp-static)" ]] || fail "the libraries compute different numbers"
  if [[ -e $root/lib/libsimulated_gpu.so ]]; then
    run ./mlp sim 8 >/dev/null
    LOCKSTEP_SIMULATED_GPU=$root/lib/libsimulated_gpu.so run ./mlp-static sim 8 >/dev/null
  fi
else
  echo "SKIP: there is no pkg-config here, and so no program was built with it; tools/setup --dev installs it"
fi
if command -v cmake >/dev/null && command -v make >/dev/null; then
  run cmake -S . -B build -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$root" "-DWANTED=${version%.*}" >/dev/null
  run cmake --build build >/dev/null
  echo "CMake: $(run build/shared)"
  ldd build/shared | grep "liblockstep.so.* => $root/lib" >/dev/null || fail "CMake's shared uses $(ldd build/shared)"
  [[ $(run build/shared) == "$(run build/static)" ]] || fail "the libraries compute different numbers"
  run cmake -S . -B major "-DCMAKE_PREFIX_PATH=$root" "-DWANTED=${version%%.*}" >/dev/null
  if cmake -S . -B other "-DCMAKE_PREFIX_PATH=$root" -DWANTED=999.0 >/dev/null 2>&1; then fail "CMake accepts version 999.0"; fi
else
  echo "SKIP: there is no cmake or make here, and so no program was built with it; tools/setup --dev installs them"
fi
