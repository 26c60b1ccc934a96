#!/bin/sh
# Runs the bundle's program by whose name it is called, or says what the machine lacks for it.
programs=$(dirname "$(readlink -f "$0")")
bundle=$(dirname "$programs")
name=$(basename "$0")
case $name in
  start)
    echo "start: call gpu_check or a program of $bundle/bin" >&2
    exit 2
    ;;
  gpu_check)
    # Debian's python3-minimal has not all of these.
    if ! python3 -c 'import ctypes, json, sys, tarfile; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      echo "gpu_check: this machine lacks Python 3.9 or later with its standard library; apt-get install python3" >&2
      exit 2
    fi
    exec python3 "$bundle/checks/gpu_check.py" "$@"
    ;;
esac
if [ -e /lib64/ld-linux-x86-64.so.2 ]; then
  # "libx.so.1 => not found", "version `GLIBC_2.34' not found", "object 'libx.so.1' from LD_PRELOAD cannot be ..."
  loads=$(sed -n 's/^ "loads": "\(.*\)",$/\1/p' "$bundle/bundle.json")
  missing=$(LD_TRACE_LOADED_OBJECTS=1 LD_WARN=yes LD_PRELOAD="$loads" "$programs/$name" 2>&1 |
    sed -n "s/^[[:space:]]*\([^ ]*\) => not found.*/\1/p; s/.*version \`\([^']*\)' not found.*/\1/p
      s/.*object '\([^']*\)' from LD_PRELOAD cannot.*/\1/p" | sort -u)
else
  missing="glibc for x86-64, which Debian 12 and Ubuntu 22.04 have,"
fi
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
