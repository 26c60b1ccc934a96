#!/usr/bin/env bash
# pairs_equal_test.sh GOT WANT [GOT WANT]...: checks values that BUILD files compute.
failed=0
(($# > 0 && $# % 2 == 0)) || { echo "FAIL: needs pairs, got $# arguments"; exit 1; }
while (($#)); do
  if [[ $1 != "$2" ]]; then
    printf 'FAIL: got  %s\n      want %s\n' "$1" "$2"
    failed=1
  fi
  shift 2
done
exit $failed
