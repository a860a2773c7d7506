#!/bin/sh
# The conversation in tmux, as a person sees it: tmux.sh PROGRAM MODEL. It needs tmux and ends with 0 when all that was waited for came.
set -eu
program=$1 model=$2
dir=$(mktemp -d)
n=0
tm="tmux -L terrace-$$-$n -f /dev/null"
trap '$tm kill-server 2>/dev/null || true; rm -rf "$dir"' EXIT
export HOME="$dir" XDG_STATE_HOME="$dir/state" XDG_CACHE_HOME="$dir/cache"

# shows waits for a text on the screen or in what was scrolled off it.
shows() {
	for _ in $(seq 300); do
		if $tm capture-pane -p -S - 2>/dev/null | tr -d '\n' | grep -qF -- "$1"; then return 0; fi
		sleep 0.1
	done
	echo "tmux.sh: '$1' does not come; the screen has" >&2
	$tm capture-pane -p -S - >&2 || true
	exit 1
}
# until_ok waits for a command to succeed; what is said where it does not.
until_ok() {
	what=$1; shift
	for _ in $(seq 300); do
		if "$@"; then return 0; fi
		sleep 0.1
	done
	echo "tmux.sh: $what; the screen has" >&2
	$tm capture-pane -p -S - >&2 || true
	exit 1
}
# row tells whether a row of the screen is like a pattern now; rows, how many are, of those scrolled off too.
row() { $tm capture-pane -p | grep -q -- "$1"; }
rows() { $tm capture-pane -p -S - | grep -c -- "$1" || true; }
# sized gives the window another size and waits until the status is drawn for it: cut where it ends in dots.
sized() {
	$tm resize-window -x "$1" -y "$2"
	until_ok "the status is not drawn for $1 columns" row "$3"
}
# alone fails where a row like a pattern is there twice: a piece of the live part was left behind.
alone() {
	n_rows=$(rows "$1")
	if [ "$n_rows" != 1 ]; then
		echo "tmux.sh: '$1' is in $n_rows rows, want 1; the screen has" >&2
		$tm capture-pane -p -S - >&2
		exit 1
	fi
}
empty() { until_ok "the editor is not emptied" row '^> a message, or /help'; }
# settles waits until the screen stands still, as it does when a reply has ended.
settles() {
	was=
	for _ in $(seq 60); do
		sleep 1
		now=$($tm capture-pane -p)
		if [ "$now" = "$was" ]; then return 0; fi
		was=$now
	done
	echo "tmux.sh: the reply does not end" >&2
	exit 1
}
type() { $tm send-keys -l "$1"; }
key() { $tm send-keys "$@"; }
begin() { # variables and further flags
	$tm kill-server 2>/dev/null || true
	n=$((n + 1)) # another server, since the one before may still be ending
	tm="tmux -L terrace-$$-$n -f /dev/null"
	$tm new-session -d -x 90 -y 30 "env $1 '$program' chat -m '$model' --expert-ram 30% --temp 0 $2; echo ended with \$?; sleep 60"
	shows "/help lists"
}

begin "A=1" ""
type "What is the capital of France?"; key Enter
shows "The capital of France is Paris."
shows "tokens/s | context"
settles
for width in 50 30 24; do
	sized $width 20 'tokens/s.*\.\.\.$'
	alone 'tokens/s'
	alone '^> a message'
done
sized 50 20 'context.*\.\.\.$'
type "/temp"; key Enter
shows "the temperature is 0"
sized 110 35 'experts: RAM'
alone 'tokens/s'
for i in $(seq 49); do echo "line $i of the paste"; done > "$dir/paste"
printf 'the end of the paste' >> "$dir/paste"
$tm load-buffer "$dir/paste"; $tm paste-buffer -p
shows "the end of the paste"
key Enter
shows "and 38 lines more"
settles
type "/undo"; key Enter; shows "taken back"
key C-c; empty
type "/save walk"; key Enter; shows "saved 2 messages as walk"
type "/bye"; key Enter; shows "ended with 0"

begin "A=1" ""
type "/load walk"; key Enter
shows "loaded 2 messages"
shows "The capital of France is Paris."
settles
key C-c; shows "Ctrl-C again"; key C-c
shows "ended with 0"

begin "A=1" "--ignore-eos"
type "Who are you?"; key Enter
shows "tokens/s"
sized 50 20 'tokens/s.*\.\.\.$'
alone 'tokens/s'
key C-c; shows "(stopped)"
settles
type "/temp"; key Enter; shows "the temperature is 0"
key C-d; shows "ended with 0"

# A reply that streams while the window changes: nothing is left behind, nothing is there twice, nothing is missing.
begin "A=1" "--ignore-eos -n 700"
type "Who are you?"; key Enter
shows "I am"
for size in "70 30" "50 20" "61 16" "44 24" "36 30" "90 30" "52 12" "30 20" "75 25" "41 20" "33 30"; do
	$tm resize-window -x "${size% *}" -y "${size#* }"
	sleep 0.1
	if [ "$size" = "50 20" ]; then # while it writes on for all that
		until_ok "the status is not drawn for 50 columns" row 'tokens/s.*\.\.\.$'
		row 'context.*\.\.\.$' && alone 'tokens/s'
	fi
done
settles
alone 'tokens/s'
alone '^> a message'
said=$("$program" run -m "$model" --temp 0 --ignore-eos -n 700 "Who are you?" 2>/dev/null | tr -d ' \n')
seen=$($tm capture-pane -p -S - | sed '1,/^> Who are you/d' | tr -d ' \n')
case $seen in
"$said"terrace:warning:*) ;; # the log's line about the loop comes after the paragraph
*)
	echo "tmux.sh: the reply is $said, and there stands $seen; the screen has" >&2
	$tm capture-pane -p -S - >&2
	exit 1 ;;
esac
key C-d; shows "ended with 0"

begin "TERM=dumb" ""
type "What is the capital of France?"; key Enter
shows "The capital of France is Paris."
key C-d; shows "ended with 0"

begin "NO_COLOR=1" ""
type "What is the capital of France?"; key Enter
shows "The capital of France is Paris."
if $tm capture-pane -p -e | grep -q "$(printf '\033')\[[0-9;]*[1-9]"; then echo "tmux.sh: colours in spite of NO_COLOR" >&2; exit 1; fi

if echo "What is the capital of France?" | "$program" chat -m "$model" --temp 0 2>&1 | tee "$dir/piped" | grep -q "$(printf '\033')"; then
	echo "tmux.sh: escape codes in a pipe" >&2; exit 1
fi
grep -q "Paris" "$dir/piped"
