#!/bin/sh
# Decode and prefill of a model with a published one's geometry and random weights, on this machine's GPU and on its CPU, from one
# file that is made here. Needs one file: the program. One line of JSON says what came out.
# Usage: decode.sh [terrace] [out.json]; FAMILY (qwen3-30b-a3b), LAYERS (0: all), VRAM (auto), TOKENS (64), DEVICE.
set -eu
bin=${1:-./terrace}
out=${2:-decode.json}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model=$dir/model.gguf
"$bin" bench synth -o "$model" --layers "${LAYERS:-0}" "${FAMILY:-qwen3-30b-a3b}" >&2
run() { # COMMAND backend vram
	XDG_CACHE_HOME=$dir "$bin" bench "$@" -m "$model" --expert-ram 100% --device "${DEVICE:-0}" --json
}
{
	printf '{"check":"decode","family":"%s","layers":%d' "${FAMILY:-qwen3-30b-a3b}" "${LAYERS:-0}"
	printf ',"gpu_decode":'; run decode --decode "${TOKENS:-64}" --reps 2 --backend vulkan --vram "${VRAM:-auto}"
	printf ',"gpu_prefill":'; run prefill --prompt 512 --backend vulkan --vram "${VRAM:-auto}"
	printf ',"cpu_decode":'; run decode --decode "${TOKENS:-64}" --reps 2 --backend cpu
	printf ',"cpu_prefill":'; run prefill --prompt 512 --backend cpu
	printf '}\n'
} | tr -d '\n' >"$out"
echo >>"$out"
cat "$out"
