package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"terrace/router"
)

// TestTrace: what is recorded is what the model chose, token by token, in passes of any size, with the guesses.
func TestTrace(t *testing.T) {
	ctx := context.Background()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 128, ExpertRAM: ExpertBudget{Percent: 30}, Lookahead: 2, Batch: 16})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ids := longPrompt(t, e)[:48]
	var b bytes.Buffer
	w := router.NewTraceWriter(&b, "trace", true)
	s.SetTrace(w)
	var chosen [][]int32 // of decode steps: by layer
	if _, err := s.Sync(ctx, ids[:40]); err != nil {
		t.Fatal(err)
	}
	s.OnRoute(func(_ int, choices []int32) { chosen = append(chosen, append([]int32(nil), choices...)) })
	for _, id := range ids[40:] {
		if err := s.Eval(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	s.OnRoute(nil)
	s.Reset()
	if err := s.Eval(ctx, ids[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.SetTrace(nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Eval(ctx, ids[1]); err != nil { // not recorded
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := router.NewTraceReader(&b, "trace")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := e.Model().Config()
	n, right, all := 0, [2]int{}, [2]int{}
	for ; ; n++ {
		var l router.TraceLine
		if err := r.Next(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		seq, pos := 0, n
		if n == 48 {
			seq, pos = 1, 0
		}
		if l.Seq != seq || l.Pos != pos || l.Token != int(ids[pos]) || len(l.Experts) != c.Layers {
			t.Fatalf("line %d: text %d, position %d, token %d, %d layers", n+1, l.Seq, l.Pos, l.Token, len(l.Experts))
		}
		for i, x := range l.Experts {
			want := c.TopK
			if i == c.Layers-1 && n < 39 {
				want = 0 // nobody sees the last layer of a prompt but for its last token
			}
			if len(x) != want {
				t.Fatalf("line %d, layer %d: %d experts, want %d", n+1, i, len(x), want)
			}
			if n >= 40 && n < 48 {
				if got := chosen[(n-40)*c.Layers+i]; got[0] != x[0] || got[3] != x[3] {
					t.Errorf("line %d, layer %d: %v, chosen were %v", n+1, i, x, got)
				}
			}
			for d, g := range [2][][]int32{l.Guess1, l.Guess2} {
				if len(g) != c.Layers {
					t.Fatalf("line %d: guesses for %d layers", n+1, len(g))
				}
				if want := i > d && len(x) > 0; want != (len(g[i]) == c.TopK) {
					t.Errorf("line %d, layer %d: %d guesses %d layers ahead", n+1, i, len(g[i]), d+1)
				}
				for _, id := range g[i] {
					all[d]++
					for _, want := range x {
						if id == want {
							right[d]++
						}
					}
				}
			}
		}
		sum := float32(0)
		for _, v := range l.Weights[0] {
			sum += v
		}
		if sum < 0.3 || sum > 1.001 || l.Weights[0][0] < l.Weights[0][3] {
			t.Errorf("line %d: weights %v", n+1, l.Weights[0])
		}
	}
	if n != 49 {
		t.Errorf("%d lines, want 49", n)
	}
	if r1, r2 := float64(right[0])/float64(all[0]), float64(right[1])/float64(all[1]); r1 < 0.7 || r2 < 0.6 {
		t.Errorf("%.2f and %.2f of the guesses were right", r1, r2)
	}
}

type fullDisk struct{ room int }

func (f *fullDisk) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errors.New("the disk is full")
	}
	return len(b), nil
}

// TestTraceError: an answer goes on when its trace cannot be written, and the error is told.
func TestTraceError(t *testing.T) {
	ctx := context.Background()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, ExpertRAM: ExpertBudget{Percent: 30}, Lookahead: 1})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetTrace(router.NewTraceWriter(&fullDisk{1 << 10}, "trace", false))
	if _, err := s.Sync(ctx, longPrompt(t, e)); err != nil {
		t.Fatal(err)
	}
	if err := s.SetTrace(nil); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
}
