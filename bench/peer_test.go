package bench

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"terrace/engine"
)

// fakePeer writes a program that answers like llama-bench: 1000 and 500 tokens/s.
func fakePeer(t *testing.T, script string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a shell script stands in for the other program")
	}
	p := filepath.Join(t.TempDir(), "llama-bench")
	if err := os.WriteFile(p, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func speedOptions() SpeedConfig {
	return SpeedConfig{Engine: engine.Options{Path: tinyMoE, Threads: 2, ExpertRAM: engine.ExpertBudget{Percent: 100}, Lookahead: engine.LookaheadAuto}, Prompt: 32, Decode: 4}
}

func TestPeer(t *testing.T) {
	dir := t.TempDir()
	p := fakePeer(t, `echo "$@" >> `+dir+`/args
echo '[{"build_commit":"abc","n_prompt":32,"n_gen":0,"avg_ts":1000,"samples_ts":[1000]},{"build_commit":"abc","n_prompt":0,"n_gen":4,"avg_ts":500,"samples_ts":[500]}]'
`)
	r, err := Peer(context.Background(), PeerConfig{SpeedConfig: speedOptions(), LlamaBench: p, Extra: []string{"-fa", "1"}, Pairs: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Pairs) != 2 || r.Peer.Commit != "abc" || r.PrefillRatio == nil || r.DecodeRatio == nil {
		t.Fatalf("report %+v, want two pairs with both ratios", r)
	}
	for i, x := range r.Pairs {
		if x.PeerPrefill != 1000 || x.PeerDecode != 500 || x.Prefill <= 0 || x.Decode <= 0 {
			t.Errorf("pair %d is %+v, want the other program's 1000 and 500 beside our speeds", i, x)
		}
	}
	if got, want := r.PrefillRatio.Min, min(r.Pairs[0].Prefill, r.Pairs[1].Prefill)/1000; got != want {
		t.Errorf("least prefill ratio %v, want %v", got, want)
	}
	if got, want := r.DecodeRatio.Max, max(r.Pairs[0].Decode, r.Pairs[1].Decode)/500; got != want {
		t.Errorf("largest decode ratio %v, want %v", got, want)
	}
	if !r.Conditions.Warm || r.Conditions.ExpertSlots != r.Conditions.ExpertsTotal {
		t.Errorf("conditions %+v, want every expert resident and nothing read in timed runs", r.Conditions)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil {
		t.Fatal(err)
	}
	want := "-m " + tinyMoE + " -t 2 -p 32 -n 4 -r 1 -ctk f16 -ctv f16 -ub 32 -o json -fa 1\n"
	if string(args) != want+want {
		t.Errorf("the other program got %q, want twice %q", args, want)
	}
}

func TestPeerRefuses(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{"echo no such model >&2; exit 3", "exit status 3: no such model"},
		{"echo hello", "not the JSON expected"},
		{"echo '[]'", "no speed for 32 prompt tokens and 4 decoded ones"},
	} {
		_, err := Peer(context.Background(), PeerConfig{SpeedConfig: speedOptions(), LlamaBench: fakePeer(t, c.script), Pairs: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.script, err, c.want)
		}
	}
}

func TestSpeed(t *testing.T) {
	c := speedOptions()
	c.Depth, c.Reps = 40, 2
	r, err := Speed(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Prefill == nil || r.Decode == nil || r.Decode.Min > r.Decode.Median || r.Decode.Median > r.Decode.Max || r.Decode.Min <= 0 {
		t.Errorf("report %+v, want both speeds", r)
	}
	if r.Bound <= 0 || r.Terms.MemoryMS <= 0 || r.Machine.Cores < 1 || r.Conditions.Depth != 40 || !r.Conditions.Warm {
		t.Errorf("report %+v, want bound, machine and conditions", r)
	}
	c.Engine.Context = 20
	if _, err := Speed(context.Background(), c); err == nil || !strings.Contains(err.Error(), "the context holds 20 tokens, the runs need 44") {
		t.Errorf("error %v, want the refusal of 44 tokens in a context of 20", err)
	}
}

func TestSpread(t *testing.T) {
	if got, want := SpreadOf([]float64{4, 1, 2, 3}), (Spread{1, 2.5, 4}); got != want {
		t.Errorf("spread %v, want %v", got, want)
	}
}
