#!/usr/bin/env bash
# Trains on two "machines" of two ranks each: network namespaces connected by a wire, each with its
# own launcher.
#   two_nodes.sh cut  FOLDER LAUNCH PROGRAM ARGUMENT...   pulls the wire in the middle of the run
#   two_nodes.sh kill FOLDER LAUNCH PROGRAM ARGUMENT...   kills rank 3; the launchers restart all ranks
# PROGRAM is train_gpt with --train.steps of more than 25. The launchers' output goes to
# FOLDER/NAME-0.log and -1.log, their exit codes to FOLDER/NAME-0.code and -1.code; after `cut` the
# wire is reconnected and both launchers are started again, with NAME resumed. Exits with 77 and a
# reason if it may not create namespaces. Needs iproute2, and user namespaces or root.
set -euo pipefail
source "$(dirname "$0")/../network_namespaces.sh"

mode=$1 folder=$2 launch=$3
shift 3
fail() { echo "two_nodes: $1" >&2; tail -n 30 "$folder"/*.log >&2; exit 1; }

started=()
trap 'kill -9 "${started[@]}" "${holders[@]}" 2>/dev/null || true' EXIT
add_machine
add_machine
ip link add wire netns "${holders[0]}" type veth peer name wire netns "${holders[1]}" ||
  refuse "no veth devices here"
for node in 0 1; do
  within "$node" ip link set dev lo up
  within "$node" ip address add "10.78.0.$((node + 1))/24" dev wire
  within "$node" ip link set dev wire up
done

# As Debian has it: a machine's own name is an address of its loopback device.
for node in 0 1; do
  echo "$( ((node == 0)) && echo 127.0.1.1 || echo 10.78.0.1) machine-0" >"$folder/hosts-$node"
done
export LOCKSTEP_SECRET=two-nodes
# start NAME RESTARTS PROGRAM...: starts the launchers on both machines.
start() {
  local name=$1 restarts=$2 node
  shift 2
  started=()
  for node in 0 1; do
    within "$node" unshare --mount bash -c 'mount --bind "$0" /etc/hosts && exec "$@"' \
      "$folder/hosts-$node" "$launch" --nnodes=2 --node_rank=$node --nproc=2 --rdzv=machine-0:29500 \
      --max_restarts="$restarts" -- bash -c 'echo process $$; exec "$@"' rank "$@" \
      >"$folder/$name-$node.log" 2>&1 &
    started+=($!)
  done
}
# Waits until both have ended, and fails if they hang.
finish() {
  local name=$1 node code i
  for node in 0 1; do
    for ((i = 0; i < 2400; ++i)); do
      kill -0 "${started[node]}" 2>/dev/null || break
      sleep 0.1
    done
    ((i < 2400)) || fail "the launcher of machine $node did not end"
    code=0
    wait "${started[node]}" || code=$?
    echo "$code" >"$folder/$name-$node.code"
  done
}
# wait_for FILE PATTERN
wait_for() {
  local i
  for ((i = 0; i < 2400; ++i)); do
    grep -qE "$2" "$1" 2>/dev/null && return
    kill -0 "${started[0]}" 2>/dev/null || fail "the run ended before $2"
    sleep 0.05
  done
  fail "no $2 in $1"
}

case $mode in
  cut)
    start cut 0 "$@"
    wait_for "$folder/cut-0.log" '^\[0\] step +25/'
    within 1 ip link set dev wire down
    finish cut
    within 1 ip link set dev wire up
    start resumed 0 "$@"
    finish resumed
    ;;
  kill)
    start kill 3 "$@"
    wait_for "$folder/kill-0.log" '^\[0\] step +25/'
    kill -9 "$(sed -n 's/^\[3\] process //p' "$folder/kill-1.log")"
    finish kill
    ;;
  *) fail "there is no '$mode'" ;;
esac
