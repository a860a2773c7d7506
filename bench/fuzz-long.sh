#!/bin/bash
# Fuzzes targets one after the other, each for FUZZTIME in all, one worker. What is done is appended to
# bench/results/fuzz.jsonl every SLICE, and counts as long as the room's Go files stay what they were: a run that was
# interrupted goes on where it stopped.
#
#   FUZZTIME=20m TARGETS="gguf/FuzzOpen chat" bench/fuzz-long.sh
#
# TARGETS are rooms or room/target; all without it. A finding is an input under the room's testdata/fuzz, and the target then
# waits until the room has changed.
set -u
cd "$(dirname "$0")/.."
GO=${GO:-go} SLICE=${SLICE:-60s} OUT=${OUT:-bench/results/fuzz.jsonl} RUN=${RUN:-}

seconds() { # of 90, 90s, 20m or 1h
	case $1 in
	*h) echo $((${1%h} * 3600)) ;;
	*m) echo $((${1%m} * 60)) ;;
	*) echo "${1%s}" ;;
	esac
}
want=$(seconds "${FUZZTIME:-20m}") || exit 2
slice=$(seconds "$SLICE") || exit 2

all=$(grep -rn --include='*_test.go' -o 'func Fuzz[A-Za-z0-9]*' gguf model tokenizer chat grammar server promptstore tiers plan quant kernels | sed 's|/[^/]*:[0-9]*:func |/|' | sort)
chosen=$all
if [ -n "${TARGETS:-}" ]; then
	chosen=
	for t in $TARGETS; do
		found=$(grep -E "^$t(/|\$)|/$t\$" <<<"$all")
		[ -n "$found" ] || { echo "fuzz: no target $t; there are" $all >&2; exit 2; }
		chosen="$chosen $found"
	done
fi

field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
git diff --quiet HEAD 2>/dev/null || commit="$commit+"
bad=0
for t in $chosen; do
	room=${t%/*} name=${t##*/}
	# Go files, tests too: another oracle is another target.
	code=$(find "$room" -name '*.go' -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-12)
	while :; do
		lines=$(grep -s "\"target\":\"$t\"" "$OUT" | grep "\"code\":\"$code\"")
		done_s=$(field seconds <<<"$lines" | awk '{s += $1} END {print s + 0}')
		if grep -q '"findings":[1-9]' <<<"$lines"; then
			echo "fuzz: $t has a finding and is as it was: mend it first"
			bad=1
			break
		fi
		left=$((want - done_s))
		if [ "$left" -le 0 ]; then
			echo "fuzz: $t: $((done_s / 60)) min $((done_s % 60)) s, $(field executions <<<"$lines" | awk '{s += $1} END {print s + 0}') executions, no finding"
			break
		fi
		n=$((left < slice ? left : slice))
		log=$(mktemp)
		$RUN "$GO" test "./$room" -run '^$' -fuzz "^$name\$" -fuzztime "${n}s" -fuzzminimizetime 20x -parallel 1 >"$log" 2>&1
		rc=$?
		execs=$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' "$log" | tail -1)
		corpus=$(sed -n 's/.*total: \([0-9]*\).*/\1/p' "$log" | tail -1)
		findings=0
		if [ $rc -ne 0 ]; then
			if ! grep -q -e '^ *--- FAIL' -e 'Failing input' -e 'panic:' "$log"; then
				cat "$log" >&2
				rm -f "$log"
				exit 1 # it did not run at all, or was interrupted
			fi
			# The end of the time may fall into an execution; Go then calls the run failed, without an input.
			if grep -q '^ *context deadline exceeded$' "$log" && ! grep -q -e 'Failing input' -e 'panic:' "$log"; then
				findings=0
			else
				findings=1
				cat "$log"
			fi
		fi
		printf '{"target":"%s","executions":%d,"seconds":%d,"minutes":%s,"corpus":%d,"findings":%d,"commit":"%s","code":"%s","date":"%s"}\n' \
			"$t" "${execs:-0}" "$n" "$(awk "BEGIN {printf \"%.2f\", $n / 60}")" "${corpus:-0}" "$findings" "$commit" "$code" "$(date -u +%Y-%m-%d)" >>"$OUT"
		rm -f "$log"
	done
done
exit $bad
