#!/bin/sh
# How much of its memory's bandwidth this machine's GPU reaches in products of rows, and how many operations in products of many
# rows, by its own timestamps. Needs one file: the tests of ./vulkan, made by
#   go test -c -ldflags '-s -w' -o vulkan.test ./vulkan
# Usage: shaders.sh [vulkan.test] [out.json]; MEMORY (3 GiB) is what weights are taken from in turn, SHAPES=1 tries other sizes of
# workgroups, DEVICE is the device's number, from 1.
set -eu
test=${1:-./vulkan.test}
out=${2:-shaders.json}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$test" -test.run '^TestSpeed$' -test.v -test.timeout 9m -device "${DEVICE:-0}" -speed "$out" -speed-memory "${MEMORY:-3221225472}" \
	${SHAPES:+-speed-shapes} >"$log" 2>&1 || { cat "$log"; exit 1; }
grep 'barriers' "$log" | sed 's/^.*speed_test.go:[0-9]*: //'
