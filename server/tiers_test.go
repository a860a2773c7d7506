package server

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"terrace/engine"
	"terrace/tiers"
)

func TestMetrics(t *testing.T) {
	_, url := serveModel(t, Options{Metrics: true}, engine.Options{Path: tinyMoE, Lookahead: 1, ExpertRAM: engine.ExpertBudget{Percent: 25}})
	scrape := func() map[string]*dto.MetricFamily {
		t.Helper()
		status, b, h := ask(t, "GET", url+"/metrics", "")
		if status != 200 || !strings.HasPrefix(h.Get("Content-Type"), "text/plain; version=0.0.4") || h.Get("Process-Start-Time-Unix") == "" {
			t.Fatalf("%d %v", status, h)
		}
		p := expfmt.NewTextParser(model.LegacyValidation)
		fs, err := p.TextToMetricFamilies(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		return fs
	}
	value := func(fs map[string]*dto.MetricFamily, name string, labels ...string) float64 {
		t.Helper()
		f := fs[name]
		if f == nil {
			t.Errorf("no %s", name)
			return 0
		}
		for _, m := range f.Metric {
			same := len(m.Label) == len(labels)/2
			for _, l := range m.Label {
				i := slices.Index(labels, l.GetName())
				same = same && i >= 0 && labels[i+1] == l.GetValue()
			}
			if same {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		t.Errorf("no %s with %v", name, labels)
		return 0
	}
	before := scrape()
	r := fetch(t, "POST", url+"/completion", `{"prompt":"Once upon a time","n_predict":8,"ignore_eos":true}`)
	tm := r["timings"].(map[string]any)
	after := scrape()
	for name, n := range map[string]any{"llamacpp:prompt_tokens_total": tm["prompt_n"], "llamacpp:tokens_predicted_total": tm["predicted_n"]} {
		if got := value(after, name) - value(before, name); got != n.(float64) {
			t.Errorf("%s grew by %g, want %v", name, got, n)
		}
	}
	for _, name := range []string{"llamacpp:prompt_tokens_seconds", "llamacpp:predicted_tokens_seconds"} {
		if value(before, name) != 0 || value(after, name) <= 0 {
			t.Errorf("%s: %g, then %g", name, value(before, name), value(after, name))
		}
	}
	again := scrape()
	if v := value(again, "llamacpp:predicted_tokens_seconds"); v != 0 {
		t.Errorf("nothing was generated since the last scrape, at %g tokens/s", v)
	}
	if after["llamacpp:n_decode_total"].GetType() != dto.MetricType_COUNTER || after["llamacpp:requests_processing"].GetType() != dto.MetricType_GAUGE {
		t.Error("types")
	}
	touches := 0.0
	for _, found := range []string{"ram", "in_flight", "disk"} {
		touches += value(after, "terrace_expert_touches_total", "found", found)
		for l := range 8 {
			touches -= value(after, "terrace_layer_expert_touches_total", "found", found, "layer", fmt.Sprint(l))
		}
	}
	if touches != 0 {
		t.Errorf("layers miss %g touches", touches)
	}
	if n := value(after, "terrace_experts", "tier", "ram") + value(after, "terrace_experts", "tier", "disk"); n != 256 {
		t.Errorf("%g experts", n)
	}
	if value(after, "terrace_disk_read_bytes_total", "for", "demand") <= 0 || value(after, "terrace_memory_bytes", "part", "arena") <= 0 {
		t.Error("nothing was read")
	}
	bound := 0.0
	for _, code := range []string{"idle", "disk", "memory", "compute", "processor"} {
		bound += value(after, "terrace_bound", "limit", code)
	}
	if bound != 1 {
		t.Errorf("%g limits", bound)
	}
}

func TestTiersRoutes(t *testing.T) {
	s, url := serveModel(t, Options{}, engine.Options{Path: tinyMoE, Context: 512, Lookahead: 1, RAM: 120 << 20})
	e := s.model.Load().Engine
	gen := `{"prompt":"Once upon a time","n_predict":40,"ignore_eos":true,"cache_prompt":false}`
	fetch(t, "POST", url+"/completion", gen)
	v := fetch(t, "GET", url+"/v1/tiers?detail=experts", "")
	if v["schema"] != float64(1) || v["object"] != "terrace.tiers" || v["model"] != "m" {
		t.Errorf("%v", v)
	}
	get := func(path string) any {
		at := any(v)
		for _, k := range strings.Split(path, ".") {
			m, ok := at.(map[string]any)
			if !ok {
				t.Fatalf("%s: no object above %s", path, k)
			}
			if at, ok = m[k]; !ok {
				t.Fatalf("%s is missing", path)
			}
		}
		return at
	}
	for _, p := range []string{"tiers.vram", "hits.vram", "budget.vram", "limit.terms.gpu_ms"} {
		if get(p) != nil {
			t.Errorf("%s is %v", p, get(p))
		}
	}
	for _, p := range []string{"tiers.ram.experts", "tiers.disk.experts", "hits.touches", "recent.tokens", "recent.busy_ms", "disk.bytes_read.demand", "budget.ram", "budget.parts.arena", "budget.ram_least"} {
		if n, ok := get(p).(float64); !ok || n <= 0 {
			t.Errorf("%s is %v", p, get(p))
		}
	}
	if get("prefetch.predictor") != "gate-ahead" || get("limit.words") == "" || get("one_more_gb.words") == "" || get("disk.store") == "" {
		t.Errorf("%v", v)
	}
	layers := get("layers").([]any)
	places, err := base64.StdEncoding.DecodeString(get("experts.tier").(string))
	if err != nil {
		t.Fatal(err)
	}
	heat, err := base64.StdEncoding.DecodeString(get("experts.heat").(string))
	if err != nil || len(heat) != 256 || len(places) != 256 || len(layers) != 8 {
		t.Fatalf("%d layers, %d and %d bytes, %v", len(layers), len(places), len(heat), err)
	}
	resident, hot := 0, 0
	for i, p := range places {
		if p&0xf == byte(tiers.Resident) {
			resident++
		}
		if heat[i] > 0 {
			hot++
		}
	}
	if float64(resident) != get("tiers.ram.experts") || hot == 0 {
		t.Errorf("%d experts in RAM by their places, %v by count; %d hot", resident, get("tiers.ram.experts"), hot)
	}
	refused(t, "GET", url+"/v1/tiers?detail=all", "", 400, "all")

	// The budget moves between the least and the start's.
	b := e.Budget()
	least, start := b.Least(), b.RAM
	if err := refused(t, "POST", url+"/v1/tiers/budget", fmt.Sprintf(`{"ram":%d}`, least-1), 400, fmt.Sprint(least-1), fmt.Sprint(least)); err["ram_least"] != float64(least) || err["ram"] != float64(least-1) {
		t.Errorf("%v", err)
	}
	if got := e.Budget().RAM; got != start {
		t.Errorf("a refusal changed the budget from %d to %d", start, got)
	}
	small := fetch(t, "POST", url+"/v1/tiers/budget", fmt.Sprintf(`{"ram":%d}`, least))
	if small["ram"] != float64(least) || small["clamped"] != false || e.Budget().RAM != least {
		t.Errorf("%v", small)
	}
	big := fetch(t, "POST", url+"/v1/tiers/budget", fmt.Sprintf(`{"ram":%d}`, start*10))
	if big["ram"] != float64(start) || big["clamped"] != true || e.Budget().RAM != start {
		t.Errorf("%v", big)
	}
	for body, word := range map[string]string{`{}`: "ram is not given", `{"ram":"4G"}`: "ram", `{"ram":-1}`: "-1", `{"ram":0}`: "0", `[]`: "array"} {
		refused(t, "POST", url+"/v1/tiers/budget", body, 400, word)
	}
	refused(t, "POST", url+"/v1/tiers/budget", `{"vram":1}`, 501, "graphics card")
	refused(t, "POST", url+"/v1/tiers/budget", `{"vram":"all"}`, 400, "vram")
	for _, h := range [][2]string{{"Origin", "http://evil.example"}, {"Origin", "null"}} {
		if status, b, _ := ask(t, "POST", url+"/v1/tiers/budget", fmt.Sprintf(`{"ram":%d}`, least), h[0], h[1]); status != 403 {
			t.Errorf("%v: %d %s", h, status, b)
		}
	}

	// The stream begins with the state; the changes lead to what is there at the end.
	res, err := http.Get(url + "/v1/tiers/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	type change struct {
		e  event
		at time.Time
	}
	seen := make(chan change, 1000)
	go func() {
		defer close(seen)
		sc := bufio.NewScanner(res.Body)
		sc.Buffer(nil, 1<<20)
		var e event
		for sc.Scan() {
			if n, ok := strings.CutPrefix(sc.Text(), "event: "); ok {
				e.name = n
			} else if d, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
				e.data = nil
				json.Unmarshal([]byte(d), &e.data)
				seen <- change{e, time.Now()}
			}
		}
	}()
	first := <-seen
	state, err := base64.StdEncoding.DecodeString(fmt.Sprint(first.e.data["tier"]))
	if err != nil || first.e.name != "state" || len(state) != 256 || first.e.data["schema"] != float64(1) {
		t.Fatalf("%v %v", first, err)
	}
	for range 3 {
		fetch(t, "POST", url+"/completion", gen)
	}
	words := func(v any) []uint32 {
		raw, err := base64.StdEncoding.DecodeString(v.(string))
		if err != nil || len(raw)%4 != 0 {
			t.Fatalf("%v: %v", v, err)
		}
		var out []uint32
		for len(raw) > 0 {
			out = append(out, binary.LittleEndian.Uint32(raw))
			raw = raw[4:]
		}
		return out
	}
	var last time.Time
	deltas, routed := 0, 0
	quiet := time.NewTimer(time.Second)
loop:
	for {
		select {
		case c := <-seen:
			if c.e.name != "delta" {
				t.Fatalf("%v", c.e)
			}
			deltas++
			routed += len(words(c.e.data["routed"]))
			for _, x := range words(c.e.data["moved"]) {
				state[x>>8] = byte(x)
			}
			last = c.at
			quiet.Reset(time.Second)
		case <-quiet.C:
			break loop
		}
	}
	if now, _ := e.Experts(); !bytes.Equal(state, now) || routed == 0 || deltas == 0 || last.IsZero() {
		t.Errorf("%d deltas with %d choices lead to\n%v, want\n%v", deltas, routed, state, now)
	}
}

// TestTiersOfDenseModel: a model without experts has tiers too, empty ones.
func TestTiersOfDenseModel(t *testing.T) {
	_, url := serveModel(t, Options{Metrics: true}, engine.Options{Path: randomModel})
	v := fetch(t, "GET", url+"/v1/tiers?detail=experts", "")
	if n := len(v["layers"].([]any)); n != 0 {
		t.Errorf("%d layers with experts", n)
	}
	refused(t, "GET", url+"/v1/tiers/stream", "", 501, "no routed experts")
	if status, _, _ := ask(t, "GET", url+"/metrics", ""); status != 200 {
		t.Errorf("metrics: %d", status)
	}
}

// BenchmarkChange is what one event of the stream costs that has 960 choices and 700 moves, a client's reading of it from a
// loopback connection included; there are ten of them a second at most.
func BenchmarkChange(b *testing.B) {
	d := engine.Change{Routed: make([]uint32, 960), Moved: make([]uint32, 700)}
	for i := range d.Routed {
		d.Routed[i] = uint32(i*25)<<8 | 1
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := (&call{w: w, r: r, rc: http.NewResponseController(w), cancel: func(error) {}}).stream(0)
		for range b.N {
			if err := e.send("delta", changeJSON(&d, time.Second)); err != nil {
				b.Error(err)
				return
			}
		}
	}))
	defer h.Close()
	res, err := http.Get(h.URL)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err != nil || n < int64(b.N)*8000 {
		b.Errorf("%d bytes came of %d events: %v", n, b.N, err)
	}
}
