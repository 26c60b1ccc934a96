#!/usr/bin/env bash
# Checks of the source tree that no build makes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
[[ -f WORKSPACE && -d kernels ]] || { echo "FAIL: $PWD is not the root of the sources"; exit 1; }
failed=0
fail() { echo "FAIL: $*"; failed=1; }

# A BUILD file in an op's folder makes it a package of its own: kernels' globs would not see the op.
while read -r file; do
  fail "$file hides its op from kernels/BUILD; remove it (what the op needs goes into kernels/BUILD)"
done < <(find kernels -mindepth 2 \( -name BUILD -o -name BUILD.bazel \))

# A test in a folder without a BUILD file would never run.
while read -r file; do
  [[ -f $(dirname "$file")/BUILD ]] || fail "$file is in no package, so it never runs"
done < <(find tests -name '*_test.cc' -o -name '*_fuzz.cc')

# nvcc 13 rejects these headers, and .cu files include core and kernels.
while read -r line; do
  fail "$line: fmt and toml++ must not be included by headers of core and kernels"
done < <(grep -nE '#include [<"](fmt|toml\+\+)/' -r core kernels --include='*.h' --include='*.cuh')

folders=(core kernels nn optim dist data models tools tests)

# Things are found by folder and file names: a folder with more files than this should be split.
most=45
while read -r count folder; do
  ((count <= most)) || fail "$folder has $count files of its own: at most $most; split it into folders with names"
done < <(find "${folders[@]}" -type f -not -path '*/corpus/*' \
  -not -path '*/__pycache__/*' -printf '%h\n' | sort | uniq -c)

exit $failed
