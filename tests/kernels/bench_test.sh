#!/bin/bash
# The benchmark and gradcheck as a user calls them: what they print, and their exit statuses.
set -u
bench=kernels/bench
gradcheck=tests/gradcheck
out=$TEST_TMPDIR
failures=0

# expect STATUS TEXT COMMAND...: the command exits with the status and prints the text.
expect() {
  local status=$1 text=$2 got
  shift 2
  "$@" >"$out/log" 2>&1
  got=$?
  if [[ $got != "$status" ]] || ! grep -qF -- "$text" "$out/log"; then
    echo "FAILED: $* exited with $got, expected $status and: $text"
    cat "$out/log"
    failures=$((failures + 1))
  fi
}

expect 0 "scale/large/f32/backward" $bench --filter=scale --list
expect 2 "--filter=no_such_op matches no op; there are:" $bench --filter=no_such_op
expect 2 "device=tpu is not a device; use auto, cpu, cuda" $bench --filter=scale --device=tpu
expect 2 "cannot open /no/such/file" $bench --filter=scale --baseline=/no/such/file

run=("$bench" --filter=scale --dtype=f32 --ms=1 --threads=1)
expect 0 "scale/large/f32/forward" "${run[@]}" --json="$out/now.json"
# Against itself made a hundred times quicker, and slower.
sed -E 's/"(median|p20|p80)_us": ([0-9.e+]+)/"\1_us": 0.01/' "$out/now.json" >"$out/quick.json"
sed -E 's/"(median|p20|p80)_us": ([0-9.e+]+)/"\1_us": 1e9/' "$out/now.json" >"$out/slow.json"
expect 1 "2 benchmarks are more than 15% slower than" "${run[@]}" --baseline="$out/quick.json"
expect 0 "scale/large/f32/forward" "${run[@]}" --baseline="$out/slow.json"
expect 2 "was measured with 1 threads, this run has 2; set --threads=1" \
  $bench --filter=scale --threads=2 --baseline="$out/now.json"
sed 's/"device": "CPU"/"device": "another"/' "$out/now.json" >"$out/elsewhere.json"
expect 2 "was measured on another, this run is on CPU; choose --device" \
  "${run[@]}" --baseline="$out/elsewhere.json"
echo "{}" >"$out/other.json"
expect 2 "is not a file that --json wrote" "${run[@]}" --baseline="$out/other.json"

# Shares, and beside cuBLASLt on a device; one that is simulated says so, in the file too.
expect 0 '"share_of_copy": ' cat "$out/now.json"
expect 0 '"simulated": false' cat "$out/now.json"
if $bench --filter=scale --list --device=sim >/dev/null 2>&1; then
  device=("$bench" --filter=linear/char_proj --dtype=f32 --ms=1 --device=sim)
  expect 0 "SIMULATED: these times say nothing about a GPU" "${device[@]}" --json="$out/sim.json"
  expect 0 '"simulated": true' cat "$out/sim.json"
  [[ $(grep -c '"library": "cuBLASLt"' "$out/sim.json") == 2 ]] ||
    { echo "FAILED: forward and backward beside cuBLASLt, got:"; cat "$out/sim.json"; failures=1; }
fi

# A training step's ops, each as often as it is called, and what the bits of its products depend on.
step=("$bench" --gpt=1,8,2,16,40,3 --ms=1 --dtype=f32 --threads=1)
expect 0 "linear_cross_entropy forward" "${step[@]}" --json="$out/step.json"
expect 0 "adamw/step/f32/forward" "${step[@]}" --list
expect 2 "choose --device=cuda or sim" "${step[@]}" --gemm_bits
python3 - "$out/step.json" <<'PYTHON' || { echo "FAILED: $(cat "$out/step.json")"; failures=1; }
import json, math, sys
step = json.load(open(sys.argv[1]))
one, all_of_it = step["benchmarks"]["attention/step/f32/forward"]["median_us"], step["step_ms"]["f32"]
assert math.isclose(all_of_it["attention forward"], 3 * one / 1000), all_of_it
assert math.isclose(sum(all_of_it.values()), step["step_sum_ms"]["f32"])
PYTHON
if $bench --filter=scale --list --device=sim >/dev/null 2>&1; then
  expect 0 "head dw" "${step[@]}" --gemm_bits --device=sim --json="$out/bits.json"
  expect 0 '"change": "nothing"' cat "$out/bits.json"
fi

expect 0 "scale/odd" $gradcheck --filter=scale --list
expect 0 "0 failures" $gradcheck --filter=scale/odd
expect 2 "--filter=no_such_op matches no op; there are:" $gradcheck --filter=no_such_op
expect 2 "selects only ops without gradients" $gradcheck --filter=fill

exit $((failures > 0))
