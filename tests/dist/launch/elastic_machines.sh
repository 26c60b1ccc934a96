#!/usr/bin/env bash
# elastic_soak.py on two "machines" of two ranks each, network namespaces connected by a wire:
#   elastic_machines.sh [OPTION OF elastic_soak.py]...
# Exits with 77 and a reason if it may not create namespaces. Needs iproute2, and user namespaces or root.
set -euo pipefail
source "$(dirname "$0")/../network_namespaces.sh"

trap 'kill -9 "${holders[@]}" 2>/dev/null || true' EXIT
add_machine
add_machine
ip link add wire netns "${holders[0]}" type veth peer name wire netns "${holders[1]}" ||
  refuse "no veth devices here"
machines=()
for node in 0 1; do
  within "$node" ip link set dev lo up
  within "$node" ip address add "10.78.0.$((node + 1))/24" dev wire
  within "$node" ip link set dev wire up
  machines+=("--machine=nsenter --net=/proc/${holders[node]}/ns/net")
done
export LOCKSTEP_SECRET=two-machines
"$(dirname "$0")/elastic_soak.py" "${machines[@]}" "$@"
