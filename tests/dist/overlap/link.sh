#!/usr/bin/env bash
# Runs a program as two ranks, each in a network namespace of its own, joined by a link of limited
# rate: communication then costs time, and little of the processor.
#   link.sh MBIT_PER_SECOND PROGRAM ARGUMENT...
# Ends with 77, and a reason, where it may not make namespaces or limit the rate. Needs iproute2,
# and user namespaces or root. Prints what rank 0 prints; the exit code is that of the first rank
# that failed.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

if [[ ${LINK_INSIDE:-} != 1 ]]; then
  for tool in unshare nsenter ip tc; do
    command -v "$tool" >/dev/null || { echo "link: there is no $tool" >&2; exit 77; }
  done
  if ! reason=$(unshare --user --map-root-user --net true 2>&1); then
    echo "link: no network namespaces here: $reason" >&2
    exit 77
  fi
  LINK_INSIDE=1 exec unshare --user --map-root-user --net "$0" "$@"
fi

rate=$1
shift
unshare --net sleep infinity &
other=$!
trap 'kill "$other" 2>/dev/null || true' EXIT
while [[ $(readlink /proc/$other/ns/net) == "$(readlink /proc/self/ns/net)" ]]; do sleep 0.01; done
there() { nsenter --net="/proc/$other/ns/net" "$@"; }

refuse() { echo "link: $1" >&2; exit 77; }
ip link add here type veth peer name there netns "$other" || refuse "no veth devices here"
ip link set lo up
ip address add 10.77.0.1/24 dev here
ip link set here up
there ip link set lo up
there ip address add 10.77.0.2/24 dev there
there ip link set there up
limit=(tbf rate "${rate}mbit" burst 256kb latency 200ms)
tc qdisc add dev here root "${limit[@]}" || refuse "the rate of a link cannot be limited here"
there tc qdisc add dev there root "${limit[@]}"

# Each rank has a core of its own where there are two.
cores=($(awk '/Cpus_allowed_list/ {print $2}' /proc/self/status | tr ',' '\n' |
  while IFS=- read -r a b; do seq "$a" "${b:-$a}"; done))
export MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=2 LOCKSTEP_SECRET=link
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME
pin=() pin_other=()
if ((${#cores[@]} >= 2)); then
  pin=(taskset -c "${cores[0]}") pin_other=(taskset -c "${cores[1]}")
fi
RANK=1 GLOO_SOCKET_IFNAME=there there "${pin_other[@]}" "$@" >/dev/null &
rank_1=$!
status=0
RANK=0 GLOO_SOCKET_IFNAME=here "${pin[@]}" "$@" || status=$?
other_status=0
wait "$rank_1" || other_status=$?
((status)) || status=$other_status
exit "$status"
