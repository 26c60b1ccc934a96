#!/usr/bin/env bash
# Formats the C++ and CUDA sources with clang-format 14; the output of other versions differs.
#   bazel run //tools:format               rewrites them
#   bazel run //tools:format -- --check    only lists those that differ, and fails if there are any
#   tools/format.sh [--check] FILE...         these files
set -euo pipefail
cd "${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f "$0")")/..}"

mode=(-i)
if [[ ${1:-} == --check ]]; then
  mode=(--dry-run --Werror --ferror-limit=1)
  shift
fi
clang_format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z $clang_format ]]; then
  echo "format: clang-format is missing; tools/setup --dev installs it" >&2
  exit 1
fi
if ! "$clang_format" --version | grep 'version 14\.' >/dev/null; then
  echo "format: $("$clang_format" --version) formats differently from version 14" >&2
  exit 1
fi

if (($#)); then
  files=("$@")
else
  mapfile -t files < <(git ls-files --cached --others --exclude-standard \
    '*.h' '*.cc' '*.cu' '*.cuh' '*.def' | while read -r f; do [[ -e $f ]] && echo "$f"; done)
fi
((${#files[@]})) || exit 0
printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 8 "$clang_format" "${mode[@]}"
