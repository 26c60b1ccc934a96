#!/usr/bin/env bash
# Runs a program as ranks, each in its own network namespace. Each one's link to the others has a
# limited rate, both ways, so that communication costs time but little of the processor.
#   link.sh [--ranks=2] MBIT_PER_SECOND PROGRAM ARGUMENT...
# Exits with 77 and a reason if it may not create namespaces or limit the rate. Needs iproute2, and
# user namespaces or root. Prints rank 0's output; the exit code is that of the lowest rank that
# failed.
set -euo pipefail
source "$(dirname "$0")/../network_namespaces.sh"

ranks=2
if [[ $1 == --ranks=* ]]; then
  ranks=${1#*=}
  shift
fi
rate=$1
shift

# This namespace is the hub.
trap 'kill "${holders[@]}" 2>/dev/null || true' EXIT
ip link add hub type bridge || refuse "no network bridges here"
ip link set dev hub up
limit=(tbf rate "${rate}mbit" burst 256kb latency 200ms)
for ((r = 0; r < ranks; ++r)); do
  add_machine
  ip link add "port$r" type veth peer name wire netns "${holders[r]}" || refuse "no veth devices here"
  ip link set dev "port$r" master hub up
  tc qdisc add dev "port$r" root "${limit[@]}" || refuse "the rate of a link cannot be limited here"
  within "$r" ip link set dev lo up
  within "$r" ip address add "10.77.0.$((r + 1))/24" dev wire
  within "$r" ip link set dev wire up
  within "$r" tc qdisc add dev wire root "${limit[@]}"
done

# Each rank gets its own core if there are enough.
cores=($(awk '/Cpus_allowed_list/ {print $2}' /proc/self/status | tr ',' '\n' |
  while IFS=- read -r a b; do seq "$a" "${b:-$a}"; done))
export MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=$ranks LOCKSTEP_SECRET=link
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=wire
started=()
for ((r = 0; r < ranks; ++r)); do
  pin=(taskset -c "${cores[r % ${#cores[@]}]}")
  if ((r == 0)); then
    RANK=$r within "$r" "${pin[@]}" "$@" &
  else
    RANK=$r within "$r" "${pin[@]}" "$@" >/dev/null &
  fi
  started+=($!)
done
status=0
for rank in "${started[@]}"; do
  code=0
  wait "$rank" || code=$?
  ((status)) || status=$code
done
exit "$status"
