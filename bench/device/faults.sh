#!/bin/sh
# What becomes of answers when this machine's device is lost, when its memory is refused, when it is not there and when features are
# masked, and of recording while the collector runs 10,000 times. Needs two files and the models of a checkout:
#   go test -c -tags faults -ldflags '-s -w' -o engine.test ./engine
#   go test -c -ldflags '-s -w' -o vulkan.test ./vulkan
# Usage: faults.sh [engine.test] [vulkan.test] [out.json]; ROOT is the checkout (that of this script), SEEDS (20) of random faults,
# DEVICE the device's number, from 1. One line of JSON says what came out.
set -u
full() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
engine=$(full "${1:-engine.test}")
vulkan=$(full "${2:-vulkan.test}")
out=$(full "${3:-faults.json}")
root=${ROOT:-$(cd "$(dirname "$0")/../.." && pwd)}
log=$(mktemp)
export TERRACE_EXACT=whole TERRACE_FAULTS="${SEEDS:-20}"
cd "$root/engine" && "$engine" -test.run 'Vulkan(Lost|LostTogether|Refused|Missing|Faults)$' -test.v -test.timeout 9m >"$log" 2>&1
rc=$?
cd "$root/vulkan" && "$vulkan" -test.run '^Test(Masked|Collector|Memory)$' -test.v -test.timeout 9m -device "${DEVICE:-0}" >>"$log" 2>&1
[ $? = 0 ] || rc=1
grep -E '^(---|FAIL|PASS|panic|fatal)|_test.go:' "$log"
cycles=$(sed -n 's/.*: \([0-9]*\) cycles over .*/\1/p' "$log")
printf '{"check":"faults","seeds":%d,"cycles":%d,"passed":%d,"failed":%d,"exit":%d}\n' "$TERRACE_FAULTS" "${cycles:-0}" \
	"$(grep -c -- '^--- PASS' "$log")" "$(grep -c -- '^--- FAIL' "$log")" "$rc" | tee "$out"
rm -f "$log"
exit $rc
