#!/usr/bin/env bash
# tools/make_bundle.sh and make_cuda_libraries.sh on small programs in place of Lockstep's.
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
  -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../lib:$ORIGIN/../cuda',-rpath,/opt/toolkit/lib64
tools/make_bundle.sh "$folder/b.tar.gz" "$folder/program" simulated 'compute_80:sm_80;sm_90a' program other -- \
  tools/gpu_check/gpu_check.py tools/gpu_check/host.py tools/gpu_check/README.md LICENSE
tar -C "$folder" -xf "$folder/b.tar.gz"
cd "$folder/lockstep"

# The program runs under each of its names, from anywhere.
[[ $(bin/program 'two words') == 'two words' ]] || fail "the program does not run"
[[ $(cd / && "$folder/lockstep/bin/other" text) == text ]] || fail "the program does not run from another folder"
[[ $(readlink libexec/other) == lockstep ]] || fail "there are several programs"
[[ -x gpu_check && -f checks/host.py ]] || fail "a script is missing"
[[ -f README.md ]] && grep 'MIT License' LICENSE >/dev/null || fail "a page is missing"
if command -v dpkg >/dev/null; then ls licenses/libpcre* >/dev/null || fail "a licence is missing: $(ls licenses)"; fi
# The program's own library is in the bundle, the system's are not.
ls lib/libpcre* >/dev/null || fail "a library is missing: $(ls lib)"
ldd libexec/program | grep "libpcre.* => $PWD/\(libexec/../\)\?lib/" >/dev/null || fail "$(ldd libexec/program)"
rpath() { readelf -d "$1" | sed -n 's/.*RPATH.*\[\(.*\)\]/\1/p'; }
[[ $(rpath "$folder/program") == '$ORIGIN/../lib:$ORIGIN/../cuda:/opt/toolkit/lib64' ]] || fail "this test is wrong"
[[ $(rpath libexec/lockstep) == '$ORIGIN/../lib:$ORIGIN/../cuda' ]] || fail "$(readelf -d libexec/lockstep)"
if ls lib | grep -E '^(libc|libm|libstdc|libgcc_s|ld-linux)'; then fail "these are the host's"; fi

# gpu_check says that Python is missing, and what starts programs is none.
mkdir "$folder/few"
for name in sh readlink dirname basename; do ln -s "$(command -v $name)" "$folder/few"; done
said=$(env -i "PATH=$folder/few" ./gpu_check 2>&1) && fail "gpu_check ran without Python"
[[ $said == *"lacks Python 3.9"*"apt-get install python3"* ]] || fail "$said"
said=$(timeout 60 libexec/start 2>&1) && fail "start ran something"
[[ $said == *"/bin"* ]] || fail "$said"

# What the host must have.
read -r backend cuda architectures glibc build <<<"$(python3 -c '
import json
b = json.load(open("bundle.json"))
print(b["backend"], b["cuda"], b["architectures"], b["glibc"], b["build"])')"
[[ $backend == simulated && $cuda == None && $architectures == 'compute_80:sm_80;sm_90a' ]] || fail "$(cat bundle.json)"
[[ $glibc =~ ^2\.[0-9]+$ && $build =~ ^[0-9a-f]{16}$ ]] || fail "$(cat bundle.json)"
newest=$(objdump -T libexec/lockstep lib/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[[ GLIBC_$glibc == "$newest" ]] || fail "$newest is not $glibc"

cd "$OLDPWD"
# A program of CUDA, of a version that no machine has: of the libraries that it loads only the runtime is in the bundle.
mkdir "$folder/installed"
library() { cc -shared -x c - -o "$folder/installed/$1" -Wl,-soname,"$1"; }
for name in cudart.so.99 cublasLt.so.99 cudnn{,_graph,_heuristic,_engines_precompiled,_engines_runtime_compiled}.so.9 nccl.so.2 \
  nvrtc.so.99 nvrtc-builtins.so.99.1; do
  library "lib$name" <<<'int Version(void) { return 99; }'
done
cat >"$folder/gpu.c" <<'C'
#include <dlfcn.h>
int main(void) { return !dlopen("libcudart.so.99", RTLD_NOW) || !dlopen("libcublasLt.so.99", RTLD_NOW); }
C
mkdir "$folder/toolkit" && mv "$folder/installed/libcudart.so.99" "$folder/toolkit"
cc "$folder/gpu.c" -o "$folder/gpu" \
  -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../lib:$ORIGIN/../cuda',-rpath,"$folder/toolkit"
tools/make_bundle.sh "$folder/gpu.tar.gz" "$folder/gpu" cuda sm_90a gpu -- tools/gpu_check/gpu_check.py
rm -r "$folder/lockstep"
tar -C "$folder" -xf "$folder/gpu.tar.gz"
grep '"cuda": 99,' "$folder/lockstep/bundle.json" >/dev/null || fail "$(cat "$folder/lockstep/bundle.json")"
[[ $(ls "$folder/lockstep/lib") == libcudart.so.99 ]] || fail "of CUDA the bundle has $(ls "$folder/lockstep/lib")"
mv "$folder/toolkit/libcudart.so.99" "$folder/installed"
# It says what is missing, and what to do.
said=$(env -i "PATH=$PATH" "$folder/lockstep/bin/gpu" 2>&1) && fail "the program ran without cuBLASLt"
[[ $said == *libcublasLt.so.99* && $said == *"$folder/lockstep/gpu_check"* && $said == *lockstep-cuda.tar.gz* ]] ||
  fail "$said"
# It runs where the library is found, or with the other tarball unpacked beside it.
LD_LIBRARY_PATH=$folder/installed "$folder/lockstep/bin/gpu" || fail "the program does not run with LD_LIBRARY_PATH"
rm "$folder/installed/libnvrtc-builtins.so.99.1"
pack() {
  LD_LIBRARY_PATH=$folder/installed CUDA_HOME=$folder/none tools/make_cuda_libraries.sh "$1" "$folder/cuda.tar.gz" 2>&1
}
said=$(pack "$folder/gpu.tar.gz") && fail "a library is missing, and nothing was said"
[[ $said == *"not found: libnvrtc-builtins.so.99"* ]] || fail "$said"
library libnvrtc-builtins.so.99.1 <<<''
pack "$folder/gpu.tar.gz" || fail "the libraries are not packed"
tar -C "$folder" -xf "$folder/cuda.tar.gz"
"$folder/lockstep/bin/gpu" || fail "the program does not find the libraries beside it"
diff <(ls "$folder/installed" | grep -v cudart) <(ls "$folder/lockstep/cuda") || fail "other libraries than those were packed"
said=$(pack "$folder/b.tar.gz") && fail "a simulated GPU needs no library"
[[ $said == *--config=cuda* ]] || fail "$said"
