#!/usr/bin/env bash
# Compares DiLoCo with data parallelism at equal tokens: two ranks train with shakespeare-char-cpu on a
# link of a limited rate (link.sh), and the last lines of each run and the bytes that rank 0 has sent
# are printed.
#   diloco.sh TRAIN_GPT FOLDER [--rate=100] [OPTION...]
set -euo pipefail
if [[ $1 == --rank ]]; then
  "${@:2}"
  awk '$1 == "wire:" {printf "sent %.1f MB\n", $10 / 1e6}' /proc/net/dev
  exit
fi

program=$1 folder=$2 rate=100
shift 2
if [[ ${1:-} == --rate=* ]]; then
  rate=${1#*=}
  shift
fi
run() {
  echo "== $1"
  "$(dirname "$0")/link.sh" --ranks=2 "$rate" "$0" --rank "$program" --model.preset=shakespeare-char-cpu \
    --train.steps=2000 --train.eval_every=500 --train.eval_batches=0 --train.sample_tokens=0 \
    --checkpoint.every=0 --threads=1 --out_dir="$folder/$1" "${@:2}" |
    grep -E 'validation|val|seconds|finished|sent' | tail -n 8
}
rounds=(--dist.outer_every=50 --dist.outer_lr=1 --dist.outer_momentum=0.5)
run data_parallel "$@"
run diloco "${rounds[@]}" "$@"
run diloco_bf16 "${rounds[@]}" --dist.outer_dtype=bf16 "$@"
