#!/bin/sh
# Runs the bundle's program by whose name it is called, or says which libraries it lacks.
programs=$(dirname "$(readlink -f "$0")")
bundle=$(dirname "$programs")
name=$(basename "$0")
# "libx.so.1 => not found", "version `GLIBC_2.34' not found"
missing=$(LD_TRACE_LOADED_OBJECTS=1 LD_WARN=yes "$programs/$name" 2>&1 |
  sed -n "s/^[[:space:]]*\([^ ]*\) => not found.*/\1/p; s/.*version \`\([^']*\)' not found.*/\1/p" | sort -u)
if [ -n "$missing" ]; then
  {
    echo "$name: this machine lacks $(echo $missing)"
    echo "  $bundle/gpu_check finds what is installed, and writes an env.sh to source; otherwise it says what to"
    echo "  install. CUDA's libraries are also in lockstep-cuda.tar.gz, to unpack in $(dirname "$bundle")."
  } >&2
  exit 127
fi
# cuDNN looks for its parts there first, and they must be of one version.
if [ -d "$bundle/cuda" ]; then
  export LD_LIBRARY_PATH="$bundle/cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
exec "$programs/$name" "$@"
