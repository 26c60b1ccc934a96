#!/bin/bash
# What the kernels of a GPT's step do, as the simulated GPU counts it, against kernels/counters.txt: a kernel that moves
# more than its line says, conflicts more or executes more instructions has regressed. Where it does less, the line is to
# say so. Of other compilers than the table's only memory and matrix products are compared.
set -u
# In a random order the lanes of a warp part now and then, which costs instructions of their own.
export CUDASIM_ORDER=forward CUDASIM_CAPABILITY=90 CUDASIM_RACES=0
bench=$1 table=$2
# The nvcc of the table.
grep 'release 13\.0' "$3" >/dev/null && same_compiler=1 || same_compiler=0
arguments=(--gpt=1,256,2,128,1024,1 --device=sim --counters)
command="bazel run -c opt //kernels:bench -- ${arguments[*]} | sed '/^\$/,\$d' >kernels/counters.txt"

if [[ $("$bench" --filter=scale --list --device=sim 2>&1) == *"this build is for real GPUs"* ]]; then
  echo "skipped: only simulated GPUs count"
  exit 0
fi

# compare TABLE NOW: prints how NOW differs.
compare() {
  awk -v same_compiler="$same_compiler" '
    FNR == 1 { for (i = 3; i <= NF; ++i) name[i] = $i; ++file; next }
    file == 1 { was[$1 " " $2] = $0; next }
    !(($1 " " $2) in was) { print $1, $2 ": has no line"; next }
    {
      split(was[$1 " " $2], old)
      delete was[$1 " " $2]
      for (i = 3; i <= NF; ++i) {
        if (name[i] == "excess" || $i == old[i]) continue
        arithmetic = i >= 4 && i <= 10  # integer to shuffle
        if (arithmetic && !same_compiler) continue
        what = i == 15 ? "ideal sectors" : i == 18 ? "ideal cycles" : name[i]
        print $1, $2 ": " what, $i + 0 ", was", old[i] + 0 ($i + 0 > old[i] + 0 ? "" : " (less)")
      }
    }
    END { for (key in was) print key ": is gone" }' "$1" "$2" | sort
}

"$bench" "${arguments[@]}" >"$TEST_TMPDIR/all" || exit 1
sed '/^$/,$d' "$TEST_TMPDIR/all" >"$TEST_TMPDIR/now"

# The comparison sees what it should: one sector more, a line too many, one too few.
awk 'NR == 2 { $14 += 1 } { print }' "$TEST_TMPDIR/now" >"$TEST_TMPDIR/more"
[[ $(compare "$TEST_TMPDIR/now" "$TEST_TMPDIR/more") =~ ': sectors '[0-9]+', was '[0-9]+$ ]] &&
  [[ $(compare <(sed 2d "$TEST_TMPDIR/now") "$TEST_TMPDIR/now") == *'has no line' ]] &&
  [[ $(compare "$TEST_TMPDIR/now" <(sed 2d "$TEST_TMPDIR/now")) == *'is gone' ]] ||
  { echo "FAILED: the comparison"; exit 1; }

found=$(compare "$table" "$TEST_TMPDIR/now")
[[ -z $found ]] && exit 0
echo "FAILED: kernels do other work than kernels/counters.txt says:"
echo "$found"
echo "Where (of those beyond 1.2 times their ideal):"
sed '1,/^$/d' "$TEST_TMPDIR/all"
echo "If it is meant to be so: $command"
exit 1
