#!/bin/sh
# Every operation of the GPU backend against its references, and against the CPU bit by bit, on this machine's device. Needs one
# file: the tests of ./vulkan, made by
#   go test -c -ldflags '-s -w' -o vulkan.test ./vulkan
# Usage: conformance.sh [vulkan.test] [out.json]; one line of JSON says what came out. DEVICE is the device's number, from 1.
set -u
test=${1:-./vulkan.test}
out=${2:-conformance.json}
log=$(mktemp)
"$test" -test.v -test.timeout 9m -device "${DEVICE:-0}" >"$log" 2>&1
rc=$?
grep -E '^(---|    ---|        ---|FAIL|PASS|panic|fatal)|_test.go:' "$log"
passed=$(grep -c -- '--- PASS' "$log")
failed=$(grep -c -- '--- FAIL' "$log")
device=$(sed -n 's/.*suite_test.go:[0-9]*: device: //p' "$log" | head -1 | tr -d '"\\')
numerics=$(sed -n 's/.*suite_test.go:[0-9]*: numerics: //p' "$log" | head -1 | tr -d '"\\')
printf '{"check":"conformance","device":"%s","numerics":"%s","passed":%d,"failed":%d,"exit":%d}\n' "$device" "$numerics" "$passed" "$failed" "$rc" | tee "$out"
rm -f "$log"
exit $rc
