package router

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"terrace/internal/testfile"
)

const realTrace = "../testdata/tiny-moe/routing.jsonl.gz"

func TestRealTraceFirstLines(t *testing.T) {
	r, err := OpenTrace(realTrace)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var l TraceLine
	if err := r.Next(&l); err != nil {
		t.Fatal(err)
	}
	want := TraceLine{Topic: "prose",
		Experts: [][]int32{{21, 17, 10, 16}, {12, 22, 21, 14}, {25, 6, 14, 8}, {22, 15, 26, 14}, {6, 3, 18, 29}, {29, 17, 16, 7}, {13, 3, 11, 24}, {0, 23, 22, 20}},
		Weights: [][]float32{{0.3262, 0.2382, 0.2224, 0.2132}, {0.6424, 0.1485, 0.1129, 0.0962}, {0.5257, 0.2587, 0.1425, 0.0731}, {0.7743, 0.0847, 0.0708, 0.0702},
			{0.6847, 0.1696, 0.0737, 0.072}, {0.3644, 0.2634, 0.1887, 0.1836}, {0.306, 0.277, 0.2145, 0.2025}, {0.3424, 0.3329, 0.1675, 0.1572}},
		Guess1: [][]int32{}, Guess2: [][]int32{}}
	if d := cmp.Diff(want, l, cmp.Comparer(func(a, b [][]int32) bool { return fmt.Sprint(a) == fmt.Sprint(b) })); d != "" {
		t.Error(d)
	}
	if err := r.Next(&l); err != nil {
		t.Fatal(err)
	}
	if l.Pos != 1 || l.Token != 22 || fmt.Sprint(l.Experts[1]) != "[18 22 6 11]" || l.Weights[7][3] != 0.1138 {
		t.Errorf("second line: %+v", l)
	}
}

// The real trace, read and written again, has the same bytes.
func TestRealTraceRoundTrip(t *testing.T) {
	raw := testfile.Gunzip(t, realTrace)
	const lines = 1500
	end, n := 0, 0
	for n < lines {
		end += bytes.IndexByte(raw[end:], '\n') + 1
		n++
	}
	raw = raw[:end]
	r, err := NewTraceReader(bytes.NewReader(raw), "memory")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := NewTraceWriter(&out, "memory", false)
	var l TraceLine
	for n = 0; ; n++ {
		if err := r.Next(&l); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(&l); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if n != lines || !bytes.Equal(out.Bytes(), raw) {
		t.Errorf("%d lines, %d bytes written, want %d lines and the %d bytes read", n, out.Len(), lines, len(raw))
	}
}

// TestTraceReplaces: an older trace stays until the new one is whole, and where that has no lines or cannot be written.
func TestTraceReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	line := TraceLine{Experts: [][]int32{{1}}, Weights: [][]float32{{1}}}
	is := func(want string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if list, _ := os.ReadDir(filepath.Dir(path)); err != nil || !strings.HasPrefix(string(b), want) || len(list) > 2 {
			t.Fatalf("%q, %v, %v; want %q", b, err, list, want)
		}
	}
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, lines := range []int{0, 3} {
		w, err := CreateTrace(path)
		if err != nil {
			t.Fatal(err)
		}
		for range lines {
			if err := w.Write(&line); err != nil {
				t.Fatal(err)
			}
			if err := w.w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		is("old")
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	is(`{"seq":0`)
	w, err := CreateTrace(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(&line); err != nil {
		t.Fatal(err)
	}
	w.file.Abort() // it cannot be written to any more
	if err := w.Close(); err == nil {
		t.Error("a trace that could not be written, and no error")
	}
	is(`{"seq":0`)
	if w, err = CreateTrace(os.DevNull); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(&line), w.Close()); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(os.DevNull); err != nil || st.Mode().IsRegular() {
		t.Error(st, err)
	}
}

func TestTraceGuesses(t *testing.T) {
	want := []TraceLine{
		{Seq: 3, Topic: `a "b" é`, Pos: 0, Token: 17, Experts: [][]int32{{1, 0}, {2, 3}, {}}, Weights: [][]float32{{0.75, 0.25}, {1e-9, 1}, {}},
			Guess1: [][]int32{{}, {2, 1}, {}}, Guess2: [][]int32{{}, {}, {3}}},
		{Seq: 3, Pos: 1, Token: 5, Experts: [][]int32{{3}, {1}, {0}}, Weights: [][]float32{{1}, {0.1234567}, {0}}},
	}
	for _, name := range []string{"t.jsonl", "t.jsonl.gz"} {
		path := filepath.Join(t.TempDir(), name)
		w, err := CreateTrace(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if err := w.Write(&want[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if zipped := raw[0] == 0x1f; zipped != strings.HasSuffix(name, ".gz") {
			t.Errorf("%s begins with %#x", name, raw[0])
		}
		r, err := OpenTrace(path)
		if err != nil {
			t.Fatal(err)
		}
		var l TraceLine
		for i := range want {
			if err := r.Next(&l); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(fmt.Sprintf("%v", want[i]), fmt.Sprintf("%v", l)); d != "" {
				t.Errorf("%s, line %d: %s", name, i, d)
			}
		}
		if err := r.Next(&l); err != io.EOF {
			t.Errorf("after the last line: %v", err)
		}
		r.Close()
	}
}

func TestTraceBadInput(t *testing.T) {
	const good = `{"seq":0,"topic":"x","pos":0,"token":1,"experts":[[1,2],[0,1]],"weights":[[0.5,0.5],[0.5,0.5]]}` + "\n"
	for _, c := range []struct{ line, want string }{
		{`{`, "line 2: unexpected end of JSON"},
		{`{"seq":1}`, "line 2: experts is missing"},
		{`{"experts":null}`, "line 2: experts is missing"},
		{`{"experts":[[1,2]],"weights":[[0.5,0.5]]}`, "experts has 1 layers, earlier lines have 2"},
		{`{"experts":[[1,2],[0,1]],"weights":[[0.5,0.5]]}`, "weights has 1 layers, experts has 2"},
		{`{"experts":[[1,2],[0,1]],"weights":[[0.5,0.5],[1]]}`, "layer 1 has 1 weights for 2 experts"},
		{`{"experts":[[1,-2],[0,1]],"weights":[[0.5,0.5],[1,1]]}`, "layer 0 names expert -2"},
		{`{"experts":[[1,2],[3,3]],"weights":[[0.5,0.5],[1,1]]}`, "layer 1 names expert 3 twice"},
		{`{"experts":[[1,2],[3,4]],"weights":[[0.5,0.5],[1,1]],"guess1":[[1]]}`, "guess1 has 1 layers, experts has 2"},
		{`{"experts":[[1,2],[3,4]],"weights":[[0.5,0.5],[1,1]],"guess2":[[1],[2,2]]}`, "guess2: layer 1 names expert 2 twice"},
		{`{"experts":[[1,2],[3,5000000000]],"weights":[[0.5,0.5],[1,1]]}`, "line 2: json: cannot unmarshal"},
	} {
		r, err := NewTraceReader(strings.NewReader(good+c.line+"\n"), "file.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		var l TraceLine
		if err := r.Next(&l); err != nil {
			t.Fatal(err)
		}
		if err := r.Next(&l); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "file.jsonl") {
			t.Errorf("%s: error %v, want %q", c.line, err, c.want)
		}
	}
	if _, err := OpenTrace(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a trace that does not exist was opened")
	}
	if _, err := OpenTrace(t.TempDir()); err == nil {
		t.Error("a directory was opened as a trace")
	}
	if r, err := NewTraceReader(strings.NewReader("\x1f\x8bnot gzip at all"), "z"); err == nil {
		t.Errorf("a broken gzip head gave %v", r)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, good)
	z.Close()
	r, err := NewTraceReader(bytes.NewReader(zipped.Bytes()[:zipped.Len()-9]), "cut.gz")
	if err != nil {
		t.Fatal(err)
	}
	var l TraceLine
	if err := r.Next(&l); err == nil {
		err = r.Next(&l)
		if err == nil || err == io.EOF {
			t.Errorf("a truncated gzip file ended with %v", err)
		}
	}
	w := NewTraceWriter(io.Discard, "out", false)
	if err := w.Write(&TraceLine{Experts: [][]int32{{1}}, Weights: [][]float32{{nan}}}); err == nil {
		t.Error("a weight of NaN was written")
	}
}

// A long line crosses the reader's buffer; one beyond the limit is refused.
func TestTraceLongLines(t *testing.T) {
	long := `{"topic":"` + strings.Repeat("x", 200000) + `","experts":[[1]],"weights":[[1]]}`
	r, err := NewTraceReader(strings.NewReader(long+"\n\n"+long), "long")
	if err != nil {
		t.Fatal(err)
	}
	var l TraceLine
	for range 2 {
		if err := r.Next(&l); err != nil || len(l.Topic) != 200000 {
			t.Fatalf("%v, topic of %d bytes", err, len(l.Topic))
		}
	}
	r, err = NewTraceReader(io.LimitReader(zeros{}, maxTraceLine+1<<20), "endless")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Next(&l); err == nil || !strings.Contains(err.Error(), "no end of line") {
		t.Errorf("error %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
