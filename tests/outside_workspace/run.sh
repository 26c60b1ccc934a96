#!/usr/bin/env bash
# A workspace of another project that uses this clone: its program, and its op with kernels for CPU and CUDA,
# whose gradients are checked and which an MLP is trained with. First as it is: Lockstep's packages are found
# in the clone, and what it has compiled is not compiled again. Then with Lockstep as the repository @lockstep,
# where everything has other names and would be: only the smallest program is built.
#   tests/outside_workspace/run.sh, or bazel test //tests/outside_workspace
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/workspace"
clone=$(readlink -f ../../..)
scratch=$(mktemp -d)
# The disk cache is below HOME, and what it has was compiled by /usr/bin/gcc. Bazel gives a test another HOME,
# and a PATH in which /bin comes first.
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
PATH=/usr/local/bin:/usr/bin:$PATH
export HOME PATH
bazel_() { bazel "--output_user_root=$scratch/bazel" --max_idle_secs=60 "$@"; }
finish() {
  for folder in "$clone/tests/outside_workspace/workspace" "$scratch/workspace"; do
    (cd "$folder" && bazel_ shutdown) >/dev/null 2>&1 || true
  done
  chmod -R u+w "$scratch"
  rm -rf "$scratch"
}
trap finish EXIT

# --- Beside the clone -----------------------------------------------------------------------------------

bazel_ build --symlink_prefix=/ //own/...
programs=$(bazel_ info bazel-bin)/own
[[ $("$programs/outside") == "outside: ok" ]]
"$programs/softsign_test" cpu
LOCKSTEP_CUDA_ALLOCATOR=none "$programs/softsign_test" sim
"$programs/mlp" cpu
"$programs/mlp" sim 3

# --- As a repository ------------------------------------------------------------------------------------

cp -r . "$scratch/workspace"
cd "$scratch/workspace"
# A project of yours would name its clone, or fetch one by http_archive.
cat >WORKSPACE <<BZL
workspace(name = "outside")
local_repository(name = "lockstep", path = "$clone")
load("@lockstep//tools/bazel:repositories.bzl", "lockstep_repositories")
lockstep_repositories()
BZL
echo "import $clone/.bazelrc" >.bazelrc
sed -i -E 's#"//(:|tools/)#"@lockstep//\1#' own/BUILD
bazel_ build --nobuild //own/...
bazel_ build --symlink_prefix=/ //own:outside
[[ $("$(bazel_ info bazel-bin)/own/outside") == "outside: ok" ]]
