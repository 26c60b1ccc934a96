# shellcheck shell=bash
# For scripts whose ranks run on "machines" to source: network namespaces connected by wires. Restarts the
# script as root of a new user and network namespace; exits with 77 and a reason if it may not create one.
# Defines
#   refuse REASON         exits with 77
#   add_machine           adds a namespace, numbered I from 0 on; the process ${holders[I]} holds it
#   within I COMMAND...   runs COMMAND there
PATH=$PATH:/usr/sbin:/sbin
refuse() { echo "$(basename "$0" .sh): $1" >&2; exit 77; }

if [[ ${IN_NETWORK_NAMESPACE:-} != 1 ]]; then
  for tool in unshare nsenter ip tc; do
    command -v "$tool" >/dev/null || refuse "there is no $tool"
  done
  reason=$(unshare --user --map-root-user --net true 2>&1) || refuse "no network namespaces here: $reason"
  IN_NETWORK_NAMESPACE=1 exec unshare --user --map-root-user --net "$0" "$@"
fi

holders=()
add_machine() {
  unshare --net sleep 3600 &
  holders+=($!)
  while [[ $(readlink "/proc/$!/ns/net") == "$(readlink /proc/self/ns/net)" ]]; do sleep 0.01; done
}
within() { nsenter --net="/proc/${holders[$1]}/ns/net" "${@:2}"; }
