package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"terrace/bench/synth"
	"terrace/plan"
)

// farHub serves the files of a folder as the repository org/tiny, and as plain files, and counts what it sends.
type farHub struct {
	*httptest.Server
	sent atomic.Int64
}

type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w counted) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.n.Add(int64(n))
	return n, err
}

const farCommit = "89abcdef0123456789abcdef0123456789abcdef"

func newFarHub(t *testing.T, dir string) *farHub {
	t.Helper()
	h := &farHub{}
	sums := sync.OnceValue(func() map[string]string {
		m := map[string]string{}
		es, _ := os.ReadDir(dir)
		for _, e := range es {
			b := []byte(e.Name())
			if st, err := e.Info(); err == nil && st.Size() < 100<<20 { // of what is larger only the header is read here
				if b, err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
					t.Error(err)
				}
			}
			s := sha256.Sum256(b)
			m[e.Name()] = hex.EncodeToString(s[:])
		}
		return m
	})
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.Path
		switch {
		case p == "/api/models/org/tiny/revision/main":
			fmt.Fprintf(w, `{"sha":%q}`, farCommit)
		case p == "/api/models/org/tiny/tree/"+farCommit:
			var all []map[string]any
			for name, s := range sums() {
				st, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					t.Error(err)
					continue
				}
				all = append(all, map[string]any{"type": "file", "path": name, "size": 130, "oid": "x", "lfs": map[string]any{"oid": s, "size": st.Size()}})
			}
			json.NewEncoder(w).Encode(all)
		default:
			name := p[strings.LastIndex(p, "/")+1:]
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				w.WriteHeader(404)
				return
			}
			defer f.Close()
			http.ServeContent(counted{w, &h.sent}, r, "", time.Time{}, f)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

// terraceEnv is terrace with an environment.
func terraceEnv(vars map[string]string, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"terrace"}, args...), env{in: strings.NewReader(""), out: &o, err: &e, getenv: func(k string) string { return vars[k] }})
	return code, o.String(), e.String()
}

// TestPlanURL: a plan for a file of 70 GB and more reads less than 32 MB of it, in seconds.
func TestPlanURL(t *testing.T) {
	dir := t.TempDir()
	m, err := synth.New(synth.Options{Family: "qwen3.8-flash-next", HeaderOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if m.Size < 70e9 {
		t.Fatalf("the file has %d bytes", m.Size)
	}
	if err := m.Write(context.Background(), filepath.Join(dir, "m.gguf"), nil); err != nil {
		t.Skipf("no sparse file of %d bytes here: %v", m.Size, err)
	}
	h := newFarHub(t, dir)
	var out string
	var took time.Duration
	for try := range 3 { // a busy machine gets another
		h.sent.Store(0)
		start := time.Now()
		code, o, errs := terraceEnv(nil, "plan", "--json", "--machine", "laptop-2019", h.URL+"/x/m.gguf?key=verysecret")
		took, out = time.Since(start), o
		if code != exitOK || errs != "" {
			t.Fatalf("exit %d: %s%s", code, out, errs)
		}
		if t.Logf("try %d: %d bytes sent of %d in %v", try, h.sent.Load(), m.Size, took); took < 3*time.Second {
			break
		}
	}
	var r struct {
		Arch   string
		Rows   []map[string]any
		Remote struct{ Size, Bytes_read int64 }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Arch != m.Family.Arch || len(r.Rows) == 0 || r.Remote.Size != m.Size || r.Remote.Bytes_read == 0 || strings.Contains(out, "verysecret") {
		t.Errorf("%s", out)
	}
	if h.sent.Load() > 32e6 || h.sent.Load() < r.Remote.Bytes_read {
		t.Errorf("%d bytes sent, %d told", h.sent.Load(), r.Remote.Bytes_read)
	}
	if took > 3*time.Second {
		t.Errorf("it took %v, want at most 3 s", took)
	}
	// The same file from the disk gives the same plan.
	code, local, errs := terraceEnv(nil, "plan", "--json", "--machine", "laptop-2019", filepath.Join(dir, "m.gguf"))
	var l struct{ Rows []map[string]any }
	if err := json.Unmarshal([]byte(local), &l); code != exitOK || err != nil || fmt.Sprint(l.Rows) != fmt.Sprint(r.Rows) {
		t.Errorf("exit %d: %s %v\n%s\n%s", code, errs, err, local, out)
	}
}

// TestPull: what it would do, the download, and the same name for run, with and without the network.
func TestPull(t *testing.T) {
	dir := t.TempDir()
	b, err := os.ReadFile(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tiny-Q4_K.gguf"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	h := newFarHub(t, dir)
	cache := t.TempDir()
	vars := map[string]string{"HF_ENDPOINT": h.URL, "HF_HUB_CACHE": cache}
	code, out, errs := terraceEnv(vars, "pull", "org/tiny:q4_k", "--dry-run")
	if code != exitOK || !strings.Contains(out, "Q4_K, 1 file(s) of 31.9 MB") || !strings.Contains(out, "terrace run -hf org/tiny:q4_k --ram") || h.sent.Load() > 4<<20 {
		t.Fatalf("exit %d, %d bytes sent: %s%s", code, h.sent.Load(), out, errs)
	}
	code, out, errs = terraceEnv(vars, "pull", "org/tiny:q4_k", "--json")
	var r pullReport
	if err := json.Unmarshal([]byte(out), &r); code != exitOK || err != nil || r.Plan == nil || r.Missing != int64(len(b)) {
		t.Fatalf("exit %d: %v %s%s", code, err, out, errs)
	}
	if got, err := os.ReadFile(r.Path); err != nil || !bytes.Equal(got, b) || !strings.HasPrefix(r.Path, filepath.Join(cache, "models--org--tiny", "snapshots", farCommit)) {
		t.Fatalf("%s: %v", r.Path, err)
	}
	n := h.sent.Load()
	h.Close()
	code, out, errs = terraceEnv(vars, "run", "-hf", "org/tiny", "--offline", "--temp", "0", "--expert-ram", "25%", "What is the capital of France?")
	if code != exitOK || !strings.Contains(out, "Paris") || h.sent.Load() != n {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	for _, x := range []struct {
		code int
		want string
		args []string
	}{
		{exitFailure, "offline: org/tiny: no Q8_0; it has Q4_K", []string{"run", "-hf", "org/tiny:Q8_0", "--offline", "x"}},
		{exitFailure, "offline: org/none was not fetched", []string{"pull", "org/none", "--offline"}},
		{exitUsage, "given twice", []string{"run", "-m", tinyMoE, "-hf", "org/tiny", "x"}},
		{exitUsage, "lacks a slash", []string{"pull", "tiny"}},
		{exitUsage, "0 names", []string{"pull"}},
		{exitUsage, "names a file or a quantisation already", []string{"run", "-hf", "org/tiny:Q8_0", "-hff", "x.gguf", "x"}},
		{exitUsage, "--connections is 0", []string{"pull", "org/tiny", "--connections", "0"}},
	} {
		code, out, errs := terraceEnv(vars, x.args...)
		if code != x.code || !strings.Contains(errs, x.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%q: exit %d: %s%s", x.args, code, out, errs)
		}
	}
}

// TestCompare: the quantisations of a repository side by side, from their headers alone; a folder gives the same.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	total := int64(0)
	for _, q := range []string{"q2_k", "q4_k", "q8_0", "iq3_xxs"} {
		m, err := synth.New(synth.Options{Family: "olmoe-1b-7b", Quant: q, HeaderOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		total += m.Size
		if err := m.Write(context.Background(), filepath.Join(dir, "olmoe-"+strings.ToUpper(q)+".gguf"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "olmoe-Q5_K.gguf"), []byte("<html>no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := newFarHub(t, dir)
	vars := map[string]string{"HF_ENDPOINT": h.URL}
	get := func(args ...string) (r compareReport) {
		t.Helper()
		code, out, errs := terraceEnv(vars, append([]string{"plan", "--compare", "--json", "--machine", "desktop-ddr5"}, args...)...)
		if err := json.Unmarshal([]byte(out), &r); code != exitOK || err != nil || errs != "" {
			t.Fatalf("exit %d: %v %s%s", code, err, out, errs)
		}
		return r
	}
	r := get("org/tiny", "--ram", "8")
	if len(r.Files) != 5 || r.Commit != farCommit || h.sent.Load() > 16<<20 || r.Read == 0 || total < 10<<30 {
		t.Fatalf("%d bytes sent of %d: %+v", h.sent.Load(), total, r)
	}
	bad, low := 0, 0
	for i, x := range r.Files {
		switch {
		case x.Error != "":
			if bad++; x.Quant != "Q5_K" || !strings.Contains(x.Error, "not a GGUF file") {
				t.Errorf("%+v", x)
			}
		case x.Row == nil || !x.Row.Fits || x.Row.Decode <= 0 || x.Bits < 2 || x.Bits > 8.5 || i > 0 && x.Size < r.Files[i-1].Size || (x.Warning != "") != (x.Bits < plan.LowBits):
			t.Errorf("%+v", x)
		case x.Warning != "":
			low++
		}
	}
	if bad != 1 || low != 2 {
		t.Errorf("%d that cannot be read, %d with a warning: %+v", bad, low, r.Files)
	}
	if !strings.HasSuffix(r.Take, "Q8_0.gguf") && !strings.HasSuffix(r.Take, "Q4_K.gguf") {
		t.Errorf("take %s: %s", r.Take, r.Reason)
	}
	if r := get("org/tiny", "--ram", "8", "--min-speed", "1e9"); strings.HasSuffix(r.Take, "Q2_K.gguf") || !strings.Contains(r.Reason, "none reaches") {
		t.Errorf("take %s: %s", r.Take, r.Reason)
	}
	if r := get("org/tiny", "--budget", "100M"); r.Take != "" || !strings.Contains(r.Reason, "none fits") {
		t.Errorf("take %s: %s", r.Take, r.Reason)
	}
	l := get(dir, "--ram", "8")
	if l.Take != r.Take || len(l.Files) != len(r.Files) || l.Read != 0 {
		t.Errorf("from the folder: %+v", l)
	}
	code, out, errs := terraceEnv(vars, "plan", "--compare", "--machine", "desktop-ddr5", "org/tiny")
	for _, want := range []string{"take olmoe-", "below 3.5 bits", "not known", "4.50", "not a GGUF file"} {
		if code != exitOK || !strings.Contains(out, want) || errs != "" {
			t.Errorf("exit %d, no %q: %s%s", code, want, out, errs)
		}
	}
	for _, x := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "ORG/REPO alone", []string{"org/tiny:Q4_K"}},
		{exitUsage, "--compare is for one machine", []string{"org/tiny", "--ram", "8,16"}},
		{exitUsage, "a file, want a repository", []string{tinyMoE}},
		{exitFailure, "404 Not Found", []string{"org/none"}},
		{exitFailure, "no GGUF file", []string{t.TempDir()}},
	} {
		code, out, errs := terraceEnv(vars, append([]string{"plan", "--compare", "--machine", "desktop-ddr5"}, x.args...)...)
		if code != x.code || !strings.Contains(errs, x.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%q: exit %d: %s%s", x.args, code, out, errs)
		}
	}
}

// TestEvalKLD: the command line of the comparison.
func TestEvalKLD(t *testing.T) {
	text := filepath.Join(t.TempDir(), "t.txt")
	if err := os.WriteFile(text, []byte("The quick brown fox jumps over the lazy dog."), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, errs := terrace("", "eval", "kld", "-m", tinyMoE, "--ref", tinyMoE, "-f", text, "--ram", "300M", "-c", "64", "--json")
	var r map[string]any
	if err := json.Unmarshal([]byte(out), &r); code != exitOK || err != nil || errs != "" || r["kld"] != 0.0 || r["top1"] != 1.0 || r["ppl_ratio"] != 1.0 || r["tokens"].(float64) < 5 {
		t.Fatalf("exit %d: %v %s%s", code, err, out, errs)
	}
	for _, x := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "--ref FILE", []string{"-m", tinyMoE, "-f", text}},
		{exitUsage, "-f FILE", []string{"-m", tinyMoE, "--ref", tinyMoE}},
		{exitUsage, "--tokens is -1", []string{"-m", tinyMoE, "--ref", tinyMoE, "-f", text, "--tokens", "-1"}},
		{exitNoFit, "together", []string{"-m", tinyMoE, "--ref", tinyMoE, "-f", text, "--ram", "60M"}},
		{exitFailure, "vocabulary of 5632 tokens", []string{"-m", tinyMoE, "--ref", golden(t, "qwen3moe"), "-f", text}},
	} {
		code, out, errs := terrace("", append([]string{"eval", "kld"}, x.args...)...)
		if code != x.code || !strings.Contains(errs, x.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%q: exit %d: %s%s", x.args, code, out, errs)
		}
	}
}
