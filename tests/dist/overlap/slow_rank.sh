#!/usr/bin/env bash
# Is a slow rank named, and nobody where none is? Trains two ranks, each on a core and in a network namespace of
# its own, and holds up the second one.
#   slow_rank.sh TRAIN_GPT HOW [ROUNDS=20] [TRAIN_GPT'S OPTIONS...]
# HOW:
#   core    a competitor computes on its core           quota   it is stopped for half of the time
#   link    what it sends goes at 200 Mbit/s            disk    each page of its data takes 10 ms (slow_disk.py)
#   none    nothing                                     all     a competitor computes on each of the two cores
# Prints what each round has said, and fails unless in each one rank 1 and nobody else was named, or with `none`
# and `all` nobody. Exits with 77 and a reason if it may not create namespaces, limit a rate or mount. Needs
# iproute2, python3 for `disk`, and user namespaces or root; and a machine that does nothing else.
set -euo pipefail
source "$(dirname "$0")/../network_namespaces.sh"

program=$(realpath "$1") how=$2 rounds=${3:-20}
shift $(($# < 3 ? $# : 3))
here=$(realpath "$(dirname "$0")")
folder=$(mktemp -d)
cores=($(awk '/Cpus_allowed_list/ {print $2}' /proc/self/status | tr ',' '\n' |
  while IFS=- read -r a b; do seq "$a" "${b:-$a}"; done))
((${#cores[@]} >= 2)) || refuse "two ranks need two cores"

helpers=()  # of this round
stop_helpers() {
  ((${#helpers[@]} > 0)) || return 0
  kill "${helpers[@]}" 2>/dev/null || true
  wait "${helpers[@]}" 2>/dev/null || true
  helpers=()
}
trap 'stop_helpers; kill "${holders[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT
add_machine
add_machine
ip link add wire netns "${holders[0]}" type veth peer name wire netns "${holders[1]}" ||
  refuse "no veth devices here"
for r in 0 1; do
  within "$r" ip link set dev lo up
  within "$r" ip address add "10.79.0.$((r + 1))/24" dev wire
  within "$r" ip link set dev wire up
done

mkdir "$folder/disk"
python3 -c 'import os, sys
tokens = bytearray(1 << 23)
tokens[::2] = os.urandom(1 << 22)
open(sys.argv[1], "wb").write(tokens)' "$folder/tokens.bin"
options=(--device=cpu --threads=1 --model.n_layer=2 --model.n_head=2 --model.n_embd=128 --model.block_size=64
  --model.vocab_size=256 --train.batch_size=8 --train.steps=400 --train.eval_every=0 --train.sample_tokens=0
  --train.log_every=20 --checkpoint.every=0 "$@")

compete() {
  taskset -c "$1" bash -c 'while :; do :; done' &
  helpers+=($!)
}
# half PID: lets it run for half of the time.
half() {
  while kill -STOP "$1" 2>/dev/null; do
    sleep 0.03
    kill -CONT "$1"
    sleep 0.03
  done
}

# round NUMBER: whom rank 0 has named, as "rank 1 on node: ...".
round() {
  local out=$folder/out-$1 data=$folder/tokens.bin r ranks=() mount=()
  rm -f "$folder/slow"
  export MASTER_ADDR=10.79.0.1 MASTER_PORT=29500 WORLD_SIZE=2 LOCKSTEP_SECRET=slow
  for r in 0 1; do
    if [[ $how == disk && $r == 1 ]]; then
      mount=(unshare --mount bash -c 'python3 "$0/slow_disk.py" "$1/tokens.bin" "$1/disk" 10 "$1/slow" &
        until [[ -e $1/disk/tokens.bin ]]; do kill -0 $! || exit; sleep 0.05; done
        shift; "$@"; code=$?; kill $!; exit $code' "$here" "$folder")
      data=$folder/disk/tokens.bin
    fi
    RANK=$r within "$r" "${mount[@]}" taskset -c "${cores[r]}" \
      bash -c 'echo $$ >"$0"; exec "$@"' "$folder/process-$r" "$program" "${options[@]}" \
      --data.path="$data" --out_dir="$out" >"$out-$r.log" 2>"$out-$r.err" &
    ranks+=($!)
  done
  until grep -q '^step ' "$out-0.log"; do
    kill -0 "${ranks[0]}" 2>/dev/null || { cat "$out"-*.err >&2; refuse "the run did not begin"; }
    sleep 0.1
  done
  case $how in
    core) compete "${cores[1]}" ;;
    all) compete "${cores[0]}"; compete "${cores[1]}" ;;
    quota)
      half "$(<"$folder/process-1")" &
      helpers+=($!)
      ;;
    link)
      within 1 tc qdisc add dev wire root tbf rate 200mbit burst 256kb latency 200ms ||
        refuse "the rate of a link cannot be limited here"
      ;;
    disk) touch "$folder/slow" ;;
    none) ;;
    *) refuse "there is no '$how'" ;;
  esac
  for r in "${ranks[@]}"; do wait "$r" || { cat "$out"-*.err >&2; exit 1; }; done
  [[ $how != link ]] || within 1 tc qdisc del dev wire root
  stop_helpers
  sed -n 's/^warning: \(rank .* keeps the other ranks waiting.*\)/\1/p' "$out-0.err" >"$folder/named"
  rm -rf "$out"
}

right=0
for ((i = 1; i <= rounds; ++i)); do
  round "$i"
  others=$(grep -vc '^rank 1 ' "$folder/named" || true) named=$(grep -c '^rank 1 ' "$folder/named" || true)
  if [[ $how == none || $how == all ]]; then
    ((named + others > 0)) || ((++right))
  else
    ((named == 0 || others > 0)) || ((++right))
  fi
  echo "$how $i: $(paste -sd';' "$folder/named")"
done
echo "$how: right in $right of $rounds"
((right == rounds))
