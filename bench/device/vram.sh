#!/bin/sh
# Decode where the card's memory is capped and RAM holds a third of the experts, beside what the planner says, and one hash of the
# logits over all of it. The model has a published one's geometry and random weights and is made here. Needs one file: the program.
# One line of JSON says what came out.
# Usage: vram.sh [terrace] [out.json]; FAMILY (qwen3-30b-a3b), LAYERS (0: all), CAPS (8GiB 12GiB 16GiB 24GiB), PART (33%) of the
# experts in RAM, TOKENS (64) behind DEPTH (128), DEVICE.
set -eu
bin=${1:-./terrace}
out=${2:-vram.json}
caps=${CAPS:-8GiB 12GiB 16GiB 24GiB}
part=${PART:-33%}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model=$dir/model.gguf
export XDG_CACHE_HOME="$dir"
"$bin" bench synth -o "$model" --layers "${LAYERS:-0}" "${FAMILY:-qwen3-30b-a3b}" >&2
hash() { # FLAGS
	"$bin" run -m "$model" --temp 0 -n 16 --ignore-eos --hash-logits --stats json --expert-ram "$part" "$@" "One two three" 2>"$dir/stats" >/dev/null || { cat "$dir/stats" >&2; exit 1; }
	sed -n 's/.*"logits_sha256":"\([0-9a-f]*\)".*/\1/p' "$dir/stats"
}
list=$(echo "$caps" | tr ' ' ',')
experts=$("$bin" plan -m "$model" --vram none --ram 64 --json | sed -n 's/.*"expert_bytes":{[^}]*"total":\([0-9]*\).*/\1/p')
{
	printf '{"check":"vram","family":"%s","layers":%d,"expert_ram":"%s","runs":[' "${FAMILY:-qwen3-30b-a3b}" "${LAYERS:-0}" "$part"
	first=1
	for cap in $caps; do
		[ $first = 1 ] || printf ','
		first=0
		printf '{"vram":"%s","decode":' "$cap"
		"$bin" bench decode -m "$model" --decode "${TOKENS:-64}" --depth "${DEPTH:-128}" --reps 2 --backend vulkan --vram "$cap" --expert-ram "$part" --device "${DEVICE:-0}" --json
		printf '}'
	done
	printf '],"plan":'
	"$bin" plan -m "$model" --vram "$list" --budget "$((experts / 3 + (2 << 30)))" --json
	printf ',"hashes":{"cpu":"%s"' "$(hash --backend cpu)"
	for cap in $caps; do
		printf ',"%s":"%s"' "$cap" "$(hash --backend vulkan --vram "$cap" --device "${DEVICE:-0}")"
	done
	printf '}}\n'
} | tr -d '\n' >"$out"
echo >>"$out"
cat "$out"
