package model_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"testing"

	"terrace/compute"
	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/internal/testfile"
	"terrace/model"
)

// golden is testdata/golden/<name>/golden.json.
type golden struct {
	Std    float64 `json:"logit_std"`
	Prompt struct {
		Tokens    []int32
		Positions []int
		Logits    map[string][]float32
		Argmax    []int
	}
	Greedy struct {
		Tokens []int32
		Logits [][]float32
	}
	Long struct {
		Tokens     []int32
		LastLogits []float32 `json:"last_logits"`
		Argmax     []int
		Margin     []float64
	}
	Noise map[string]float64
}

// unzip reads a gzipped file of testdata.
func unzip(t testing.TB, path ...string) []byte {
	t.Helper()
	return testfile.Gunzip(t, filepath.Join(append([]string{"..", "testdata"}, path...)...))
}

func readGolden(t testing.TB, name string) *golden {
	t.Helper()
	g := &golden{}
	if err := json.Unmarshal(unzip(t, "golden", name, "golden.json.gz"), g); err != nil {
		t.Fatal(err)
	}
	if len(g.Prompt.Tokens) != 48 || len(g.Long.Tokens) != 300 || len(g.Greedy.Logits) != 8 || g.Std == 0 {
		t.Fatalf("%s: golden.json was misread: %d prompt tokens, %d long, %d greedy, deviation %v", name, len(g.Prompt.Tokens), len(g.Long.Tokens), len(g.Greedy.Logits), g.Std)
	}
	return g
}

// setup says how a fixture is run.
type setup struct {
	cpu     cpu.Options
	rows    int // most tokens of a Forward
	ahead   int
	k, v    compute.KVType
	source  func(m *model.Model, r *model.Resident) model.Source // nil: the resident one
	context int
	saves   int // checkpoints
	rope    model.RopeOptions
}

var exact = setup{cpu: cpu.Options{Threads: 2, Exact: true}, k: compute.KVF32, v: compute.KVF32}

// rig is a fixture ready to run.
type rig struct {
	*model.Model
	st  *model.State
	src model.Source
	be  *cpu.Backend
}

func openBytes(t testing.TB, name string, data []byte) *gguf.File {
	t.Helper()
	f, err := gguf.OpenReader(bytes.NewReader(data), int64(len(data)), name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func newRig(t testing.TB, data []byte, s setup) *rig {
	t.Helper()
	f := openBytes(t, "fixture", data)
	m, err := model.Load(f, model.Options{MaxRows: s.rows, Rope: s.rope})
	if err != nil {
		t.Fatal(err)
	}
	be, err := cpu.New(s.cpu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { be.Close() })
	err = m.Bind(be, func(name string) []byte {
		x, _ := f.Tensor(name)
		return data[x.Offset:x.End()]
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := m.Table(); d != nil {
		rows, err := model.NewResidentTable(d, data[d.Offset:d.End()])
		if err != nil {
			t.Fatal(err)
		}
		m.SetTable(rows)
	}
	res, err := model.NewResident(m, s.ahead, func(e gguf.Extent) ([]byte, error) { return data[e.Offset:e.End()], nil })
	if err != nil {
		t.Fatal(err)
	}
	if s.context == 0 {
		s.context = 320
	}
	st, err := m.NewState(s.context, s.k, s.v, s.saves)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Free)
	r := &rig{Model: m, st: st, be: be, src: res}
	if s.source != nil {
		r.src = s.source(m, res)
	}
	return r
}

// feed appends tokens in batches of at most cut and answers the logits of all of them.
func (r *rig) feed(t testing.TB, tokens []int32, cut int) [][]float32 {
	t.Helper()
	var all [][]float32
	vocab := r.Config().Vocab
	for len(tokens) > 0 {
		n := min(cut, len(tokens))
		out := make([]float32, n*vocab)
		if err := r.Forward(context.Background(), r.st, model.Batch{Tokens: tokens[:n], Logits: model.AllLogits, Out: out}, r.src); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			all = append(all, out[i*vocab:(i+1)*vocab])
		}
		tokens = tokens[n:]
	}
	return all
}

func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

// farthest is the largest difference of two rows of logits.
func farthest(a, b []float32) float64 {
	if len(a) != len(b) {
		panic(fmt.Sprintf("%d and %d logits", len(a), len(b)))
	}
	d := 0.0
	for i := range a {
		x := math.Abs(float64(a[i]) - float64(b[i]))
		if !(x <= d) { // NaN counts
			d = x
		}
	}
	return d
}

func sameBits(a, b [][]float32) (row, col int, same bool) {
	for i := range a {
		for j := range a[i] {
			if math.Float32bits(a[i][j]) != math.Float32bits(b[i][j]) {
				return i, j, false
			}
		}
	}
	return 0, 0, true
}

func at(g *golden, p int) []float32 { return g.Prompt.Logits[strconv.Itoa(p)] }
