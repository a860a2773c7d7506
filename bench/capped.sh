#!/bin/sh
# capped.sh RATE DEVICE COMMAND...: runs a command that may read no more than RATE bytes a second from DEVICE (such as
# /dev/vda), in a control group of its own (version 1: blkio). For measurements; needs root.
set -eu
[ $# -ge 3 ] || { echo "usage: $0 BYTES_PER_SECOND DEVICE COMMAND..." >&2; exit 2; }
rate=$1 device=$2; shift 2
number=$(printf '%d:%d' "0x$(stat -c %t "$device")" "0x$(stat -c %T "$device")")
root=/sys/fs/cgroup/blkio
group=$root/terrace-capped-$$
mkdir "$group"
trap 'rmdir "$group"' EXIT
echo "$number $rate" > "$group/blkio.throttle.read_bps_device"
code=0
sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$@" || code=$?
exit $code
