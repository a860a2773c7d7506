package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"terrace/internal/tinymodel"
)

// TestLongConversation is a conversation of 4K tokens that is sent again with one more question, in another slot and after a
// restart: only what is new is evaluated, and what is written in a turn is little more than what is new in the state.
func TestLongConversation(t *testing.T) {
	if raceEnabled {
		t.Skip("slow under the race detector")
	}
	dense, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Context: 8192, Layers: 2})
	if err != nil {
		t.Fatal(err)
	}
	paths := families(t, "qwen3next")
	for _, c := range []struct {
		name, path string
		length     int
	}{{"qwen3moe", dense, 4096}, {"qwen3next", paths["qwen3next"], 1024}} {
		o := Options{Path: c.path, Context: 2 * c.length, CacheRAM: 128 << 20}
		dir := t.TempDir()
		e, pc := cached(t, o, PromptCacheOptions{Dir: dir})
		s := session(t, e, pc)
		ctx := context.Background()
		talk := wave(c.length, 1)
		z := e.Model().StateSize(e.opt.KeyType, e.opt.ValType)
		token, snapshot := z.Token+z.Index, z.Recurrent+z.Conv
		turn := func(what string, question, most, snapshots int) {
			t.Helper()
			was, before := s.Pos(), pc.Stats().Written
			start := time.Now()
			n, err := s.Sync(ctx, talk)
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			for i := range 40 {
				if err := s.Eval(ctx, int32(i)); err != nil {
					t.Fatal(err)
				}
				talk = append(talk, int32(i))
			}
			s.Keep()
			pc.Flush()
			if n > most {
				t.Errorf("%s, %s: %d tokens of %d evaluated, at most %d wanted", c.name, what, n, len(talk)-40, most)
			}
			wrote, state := pc.Stats().Written-before, int64(len(talk)-max(was, len(talk)-40-question))*token+int64(snapshots)*snapshot
			t.Logf("%s, %s: %d of %d tokens evaluated in %v; %d bytes written, %d new in the state", c.name, what, n, len(talk)-40, took, wrote, state)
			if float64(wrote) > 1.2*float64(state) {
				t.Errorf("%s, %s: %d bytes written, the new state has %d", c.name, what, wrote, state)
			}
		}
		turn("the first turn", c.length, c.length, c.length/256+1)
		ask := func() { talk = append(talk, wave(30, len(talk))...) }
		ask()
		turn("the same slot", 30, 30, 1)
		ask()
		s.Reset()
		turn("another slot", 30, 30+1, 1)
		if err := pc.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		e, pc = cached(t, o, PromptCacheOptions{Dir: dir})
		s = session(t, e, pc)
		ask()
		turn("after a restart", 30, 30+1, 1)
		// Another question in place of the last one, and a change in the middle.
		s.Reset()
		talk = append(slices.Clone(talk[:len(talk)-70]), wave(30, 77)...)
		turn("the last question edited", 30, 30+1, 1)
		s.Reset()
		talk = append(slices.Clone(talk[:c.length/2+100]), wave(30, 78)...)
		most := 30
		if snapshot > 0 {
			most += 256
		}
		turn("edited in the middle", 30, most, 2)
	}
}
