package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/gguf"
	"terrace/sample"
	"terrace/tokenizer"
)

// TestLoopsInTexts: no text that tiny-moe is tried on is taken for a loop, by itself or with all others of its file in a row.
// TERRACE_TEXTS names a folder with more of them (.jsonl, .txt).
func TestLoopsInTexts(t *testing.T) {
	f, err := gguf.Open(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.New(f.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, dir := range []string{"../testdata/tiny-moe", "../testdata/tiny-moe/eval", os.Getenv("TERRACE_TEXTS")} {
		if dir == "" {
			continue
		}
		for _, pattern := range []string{"*.jsonl", "*.txt"} {
			m, _ := filepath.Glob(filepath.Join(dir, pattern))
			paths = append(paths, m...)
		}
	}
	texts, tokens := 0, 0
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole := sample.NewLoopDetector()
		try := func(text string) {
			texts++
			d := sample.NewLoopDetector()
			for _, id := range tok.Encode(nil, text, false, false) {
				tokens++
				if d.Accept(id) {
					t.Errorf("%s: %.60q: %+v", path, text, *d.Loop())
				}
				if whole.Accept(id) {
					t.Errorf("%s, all in a row: %+v", path, *whole.Loop())
				}
			}
		}
		if strings.HasSuffix(path, ".txt") {
			try(string(b))
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(b))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l struct{ Text, Question, Answer string }
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			try(l.Text + l.Question)
			try(l.Answer)
		}
	}
	t.Logf("%d texts of %d files, %d tokens", texts, len(paths), tokens)
	if len(paths) < 21 || tokens < 80000 {
		t.Errorf("only %d texts of %d files, %d tokens", texts, len(paths), tokens)
	}
}

// stuck is a Chooser that says the same tokens over and over.
type stuck struct{ n, period int32 }

func (s *stuck) Next([]float32) (int32, error) { return 100 + s.n%s.period, nil }
func (s *stuck) Accept(int32)                  { s.n++ }

// TestStopLoops: an answer that repeats itself is told of, and ended if that was asked for, with and without a scheduler.
func TestStopLoops(t *testing.T) {
	var log strings.Builder
	e := mustOpen(t, Options{Path: "../testdata/protocol-random/protocol-random.gguf", Context: 512, Slots: 2, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	prompt := []int32{5, 6, 7}
	for _, stops := range []bool{false, true} {
		want := 300
		if stops {
			want = sample.LoopTokens
		}
		check := func(who string, tokens int, finish Finish, l *sample.Loop, period int) {
			t.Helper()
			if tokens != want || finish != FinishLength || l == nil || *l != (sample.Loop{Period: period, At: 0, Tokens: want}) {
				t.Errorf("%s, stop %v: %d tokens, %s, %+v", who, stops, tokens, finish, l)
			}
			if n := strings.Count(log.String(), "repeats itself"); n != 1 {
				t.Errorf("%s: the log has %d warnings, want 1: %s", who, n, log.String())
			}
			log.Reset()
		}
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		sm, err := sample.New(sample.Params{Vocab: e.Model().Config().Vocab, Samplers: []string{"temperature"}, TypicalP: 1, TopP: 1, RepeatPenalty: 1, LogitBias: map[int32]float32{300: 1e9}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Generate(context.Background(), Request{Prompt: prompt, Max: 300, Sampler: sm, IgnoreEOS: true, StopLoops: stops})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		check("session", len(r.Tokens), r.Finish, r.Stats.Loop, 1)

		sc, err := e.NewScheduler(SchedulerOptions{Slots: 2})
		if err != nil {
			t.Fatal(err)
		}
		other := make(chan JobResult, 1)
		go func() { // beside it, one that does not
			r, err := sc.Do(context.Background(), Job{Prompt: []int32{9, 8}, Max: 200, Slot: -1, Chooser: &stuck{period: 30}, IgnoreEOS: true, StopLoops: true})
			if err != nil {
				t.Error(err)
			}
			other <- r
		}()
		j, err := sc.Do(context.Background(), Job{Prompt: prompt, Max: 300, Slot: -1, Chooser: &stuck{period: 3}, IgnoreEOS: true, StopLoops: stops})
		if err != nil {
			t.Fatal(err)
		}
		if o := <-other; len(o.Tokens) != 200 || o.Stats.Loop != nil {
			t.Errorf("the other answer has %d tokens and %+v", len(o.Tokens), o.Stats.Loop)
		}
		check("scheduler", len(j.Tokens), j.Finish, j.Stats.Loop, 3)
		sc.Close(context.Background())
	}
}
