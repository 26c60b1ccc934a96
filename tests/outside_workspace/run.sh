#!/usr/bin/env bash
# Builds and runs a program in another workspace that depends on this clone.
#   tests/outside_workspace/run.sh, or bazel test //tests/outside_workspace
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/workspace"
scratch=$(mktemp -d)
# As a test, HOME may not be set; it holds the disk cache.
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
bazel=(bazel "--output_user_root=$scratch/bazel" --max_idle_secs=60)
finish() {
  "${bazel[@]}" shutdown >/dev/null 2>&1 || true
  chmod -R u+w "$scratch"
  rm -rf "$scratch"
}
trap finish EXIT
"${bazel[@]}" build --symlink_prefix=/ //:outside
output=$("$("${bazel[@]}" info bazel-bin)/outside")
echo "$output"
[[ $output == "outside: ok" ]]
