#!/usr/bin/env bash
# Draws docs/img/demo.svg and plan.svg from what the program prints now, on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_CACHE_HOME=$tmp/cache
bin/terrace run -m testdata/tiny-moe-Q4_K.gguf --expert-ram 30% --temp 0 --stats text "What is the capital of France?" > "$tmp/demo" 2>&1
go run ./docs/_gen -prompt 'terrace run --expert-ram 30% --temp 0 --stats text "What is the capital of France?"' -cols 118 -hang 10 \
  -title "terrace answers: The capital of France is Paris. Below it the statistics of the run" < "$tmp/demo" > docs/img/demo.svg
cd "$tmp"
"$OLDPWD/bin/terrace" bench synth qwen3-30b-a3b --quant q4_k_m --header-only -o Qwen3-30B-A3B-Q4_K_M.gguf > /dev/null
"$OLDPWD/bin/terrace" plan Qwen3-30B-A3B-Q4_K_M.gguf --machine laptop-2023 --ram 8,12,16,24,32 | grep -v '^terrace run' > plan
cd "$OLDPWD"
go run ./docs/_gen -prompt 'terrace plan Qwen3-30B-A3B-Q4_K_M.gguf --machine laptop-2023 --ram 8,12,16,24,32' -cols 156 \
  -title "terrace plan: for laptops of 8 to 32 GiB, how many experts fit, what is read for a token, and the predicted speed" < "$tmp/plan" > docs/img/plan.svg
