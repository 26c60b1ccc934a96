#!/usr/bin/env bash
# tools/make_bundle.sh on a small program in place of Lockstep's.
# (grep reads to the end: with -q, what writes to it could be ended by SIGPIPE, which pipefail reports.)
set -euo pipefail
fail() { echo "FAIL: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Linked like Lockstep's program: with a library that hosts lack, found in the bundle's folder or a
# toolkit's.
pcre=$(ldd "$(command -v grep)" | awk '$2 == "=>" && /libpcre/ { print $3 }')
cat >"$folder/program.c" <<'C'
#include <stdio.h>
int main(int argc, char** argv) { return puts(argv[argc - 1]) < 0; }
C
cc "$folder/program.c" -o "$folder/program" -Wl,--no-as-needed "$pcre" \
  -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../lib',-rpath,/opt/toolkit/lib64
tools/make_bundle.sh "$folder/b.tar.gz" "$folder/program" 'compute_80:sm_80;sm_90a' program other -- \
  tools/gpu_check/gpu_check.py tools/gpu_check/host.py
tar -C "$folder" -xf "$folder/b.tar.gz"
cd "$folder/lockstep"

# The program runs under each of its names.
[[ $(bin/program text) == text && $(readlink bin/other) == lockstep ]] || fail "the program does not run"
[[ -x gpu_check && -f checks/host.py ]] || fail "a script is missing"
# The program's own library is in the bundle, the system's are not.
ls lib/libpcre* >/dev/null || fail "a library is missing: $(ls lib)"
ldd bin/program | grep "libpcre.* => $PWD/lib\|libpcre.* => $PWD/bin/../lib" >/dev/null || fail "$(ldd bin/program)"
readelf -d "$folder/program" | grep 'RPATH.*\[$ORIGIN/../lib:/opt/toolkit/lib64\]' >/dev/null || fail "this test is wrong"
readelf -d bin/lockstep | grep 'RPATH.*\[$ORIGIN/../lib\]' >/dev/null || fail "$(readelf -d bin/lockstep)"
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
