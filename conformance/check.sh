#!/usr/bin/env bash
# Starts terrace serve with a model, runs the suite against it and stops it.
# usage: check.sh TERRACE MODEL.gguf SKIPS [name=value ...]
# SKIPS is an extended regular expression: a skipped test whose name it does not match is a failure. The variables are the
# suite's, see README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
terrace=$1 model=$2 skips=$3
shift 3
work=$(mktemp -d)
server=
stop() {
	if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
	rm -rf "$work"
}
trap stop EXIT
[ -d "$here/node_modules" ] || (cd "$here" && npm ci --no-audit --no-fund)
mkdir "$work/slots"
XDG_CACHE_HOME="$work/cache" "$terrace" serve -m "$model" --host 127.0.0.1 --port 0 -c 8192 -np 4 --api-key secret --metrics --slots \
	--slot-save-path "$work/slots" --jinja 2>"$work/log" &
server=$!
url=
for _ in $(seq 600); do
	url=$(sed -n 's|.*listening on \(http://[^,]*\),.*|\1|p' "$work/log")
	if [ -n "$url" ] && grep -q 'ready:' "$work/log"; then break; fi
	kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; server=; exit 1; }
	sleep 0.1
done
if ! env BASE_URL="$url" API_KEY=secret "$@" node "$here/run.mjs" --test-reporter=spec >"$work/out" 2>&1; then
	cat "$work/out" "$work/log" >&2
	exit 1
fi
echo "conformance of $(basename "$model"): $(sed -n 's/^ℹ \(tests\|pass\|fail\|skipped\) /\1 /p' "$work/out" | tr '\n' ' ')"
sed -n 's/^﹣ /  skipped: /p' "$work/out"
if grep '^﹣ ' "$work/out" | grep -vqE "$skips"; then
	echo "a test was skipped that should have run" >&2
	exit 1
fi
kill -TERM "$server"
wait "$server" || { echo "terrace serve ended with status $?" >&2; cat "$work/log" >&2; exit 1; }
server=
