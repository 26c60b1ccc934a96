#!/usr/bin/env bash
# tools/make_bundle.sh on programs of this system in place of Lockstep's.
set -euo pipefail
fail() { echo "FAIL: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tools/make_bundle.sh "$folder/b.tar.gz" "$(command -v grep)" 'compute_80:sm_80;sm_90a' grep other -- \
  tools/gpu_check/gpu_check.py tools/gpu_check/host.py
tar -C "$folder" -xf "$folder/b.tar.gz"
cd "$folder/lockstep"

# The programs run, by each of their names.
[[ $(echo text | bin/grep -o ex) == ex && $(readlink bin/other) == lockstep ]] || fail "the program does not run"
[[ -x gpu_check && -f checks/host.py ]] || fail "a script is missing"
# grep's own library travels, the system's do not.
ls lib/libpcre* >/dev/null || fail "a library is missing: $(ls lib)"
if ls lib | grep -E '^(libc|libm|libstdc|libgcc_s|ld-linux)'; then fail "these are the host's"; fi

# What the host must have.
read -r backend cuda architectures glibc build <<<"$(python3 -c '
import json
b = json.load(open("bundle.json"))
print(b["backend"], b["cuda"], b["architectures"], b["glibc"], b["build"])')"
[[ $backend == simulated && $cuda == None && $architectures == 'compute_80:sm_80;sm_90a' ]] || fail "$(cat bundle.json)"
[[ $glibc =~ ^2\.[0-9]+$ && $build =~ ^[0-9a-f]{16}$ ]] || fail "$(cat bundle.json)"
newest=$(objdump -T bin/lockstep lib/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[[ GLIBC_$glibc == "$newest" ]] || fail "$newest is not $glibc"
