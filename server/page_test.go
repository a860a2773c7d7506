package server

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"terrace/engine"
	"terrace/plan"
	"terrace/web"
)

// page asks as a browser does.
func page(t *testing.T, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept-Encoding", "gzip, deflate, br")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body := io.Reader(res.Body)
	if res.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			t.Fatal(err)
		}
	}
	b, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// TestPage: the page is there without a key and before the model, and what it brings first is small.
func TestPage(t *testing.T) {
	s, err := New(Options{Keys: []string{"secret"}, Prefix: "/deep"})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	defer h.Close()
	defer s.Close()
	total := int64(0)
	for path, word := range map[string]string{"/deep/": "<!doctype html>", "/deep/index.html": `src="app.js"`, "/deep/app.js": "v1/tiers/stream", "/deep/app.css": "color-scheme", "/deep/icon.svg": "<svg", "/deep/THIRD_PARTY_LICENSES.txt": "preact"} {
		res, body := page(t, h.URL+path)
		if res.StatusCode != 200 || !strings.Contains(body, word) {
			t.Errorf("%s: %d, %.80q lacks %q", path, res.StatusCode, body, word)
		}
		if res.Header.Get("Content-Security-Policy") != web.Policy || res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: %v", path, res.Header)
		}
		if path != "/deep/index.html" && path != "/deep/THIRD_PARTY_LICENSES.txt" {
			total += res.ContentLength
		}
		if again, _ := page(t, h.URL+path, "If-None-Match", res.Header.Get("ETag")); again.StatusCode != 304 {
			t.Errorf("%s again: %d", path, again.StatusCode)
		}
		plain, same := page(t, h.URL+path, "Accept-Encoding", "identity")
		if plain.Header.Get("Content-Encoding") != "" || same != body || plain.ContentLength != int64(len(body)) {
			t.Errorf("%s uncompressed is another", path)
		}
		if other, _ := page(t, h.URL+path, "Origin", "http://other.example"); other.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s may be read by another page", path)
		}
	}
	if total <= 0 || total >= 400<<10 {
		t.Errorf("a first load is %d bytes, want less than 400 KiB", total)
	}
	if res, _ := page(t, h.URL+"/deep"); res.StatusCode != 308 || res.Header.Get("Location") != "/deep/" {
		t.Errorf("/deep: %d to %q", res.StatusCode, res.Header.Get("Location"))
	}
	res, body := page(t, h.URL+"/deep/ui.json")
	var facts map[string]any
	if err := json.Unmarshal([]byte(body), &facts); err != nil || facts["key"] != true || facts["ready"] != false || res.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s %v %v", body, err, res.Header)
	}
	if res, _ := page(t, h.URL+"/"); res.StatusCode != 401 {
		t.Errorf("outside the prefix: %d", res.StatusCode)
	}
	if status, _, _ := ask(t, "POST", h.URL+"/deep/", "{}"); status != 401 {
		t.Errorf("POST: %d", status)
	}
}

func TestNoPage(t *testing.T) {
	s, err := New(Options{NoPage: true})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	defer h.Close()
	defer s.Close()
	for _, path := range []string{"/", "/index.html", "/app.js", "/ui.json"} {
		if res, _ := page(t, h.URL+path); res.StatusCode != 404 {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
}

func TestTakesGzip(t *testing.T) {
	for accept, want := range map[string]bool{"": false, "gzip": true, "br, gzip": true, "gzip;q=0": false, "gzip; q=0.00": false, "gzip;q=0.5": true, "*": true, "identity": false, "deflate;q=1.0, gzip;q=1.0": true} {
		if got := takesGzip(accept); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

// planner is a Planner whose machine is given.
type planner struct {
	e    *engine.Engine
	err  error
	here plan.Size
}

func (p planner) Plan(sizes []plan.Size) (plan.Plan, plan.Size, error) {
	if p.err != nil {
		return plan.Plan{}, plan.Size{}, p.err
	}
	s, err := engine.ShapeOf(p.e.File(), p.e.Options())
	if err != nil {
		return plan.Plan{}, plan.Size{}, err
	}
	var profile plan.Profile
	r, err := plan.Make(s, profile.Machine("", 8<<30, 2), sizes...)
	return r, p.here, err
}

func TestPlanRoute(t *testing.T) {
	s, url := serveModel(t, Options{}, engine.Options{Path: tinyMoE, Context: 512, Lookahead: 1, RAM: 120 << 20})
	m := s.model.Load()
	refused(t, "GET", url+"/v1/plan", "", 501, "makes no plans")
	with := func(p planner) {
		c := &Model{Engine: m.Engine, Scheduler: m.Scheduler, Alias: "m", Planner: p}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		s.model.Store(c)
	}
	with(planner{e: m.Engine, here: plan.Size{RAM: 8 << 30}})
	v := fetch(t, "GET", url+"/v1/plan", "")
	if v["object"] != "terrace.plan" || v["schema"] != 1.0 || v["model"] != "m" || len(v["rows"].([]any)) != len(plan.NominalSizes) {
		t.Errorf("%v", v)
	}
	now := v["now"].(map[string]any)
	if now["budget"] != float64(120<<20) || now["fits"] != true || now["experts_total"] != 256.0 || now["predicted_decode"].(float64) <= 0 {
		t.Errorf("now: %v", now)
	}
	if slots := float64(m.Engine.Budget().Slots); now["ram_experts"] != slots { // a plan and a run agree
		t.Errorf("a plan puts %v experts into RAM, the engine started with %v", now["ram_experts"], slots)
	}
	if here := v["this_machine"].(map[string]any); here["ram"] != float64(8<<30) {
		t.Errorf("%v", here)
	}
	if p := v["plan"].(map[string]any); p["model"] != "Tiny-MoE" || p["rows"] != nil || p["machine"].(map[string]any)["threads"] != 2.0 {
		t.Errorf("%v", p)
	}
	v = fetch(t, "GET", url+fmt.Sprintf("/v1/plan?ram=%d&budget=%d,1000000", 16<<30, 200<<20), "")
	rows := v["rows"].([]any)
	row := func(i int) map[string]any { return rows[i].(map[string]any) }
	if len(rows) != 3 || row(0)["ram"] != float64(16<<30) || row(1)["budget"] != float64(200<<20) || row(2)["fits"] != false || row(2)["reason"] == "" {
		t.Errorf("%v", rows)
	}
	for query, word := range map[string]string{"ram=8G": "8G", "budget=0": "0", "budget=-5": "-5", "ram=1,,2": "ram", "ram=" + strings.Repeat("1,", 64) + "1": "65 sizes", "ram=%zz": "zz", "ram=1;budget=2": "semicolon",
		"ram=8589934592&ram=1": "2 times", "budget=1125899906842625": "1125899906842625", "ram=%00": "ram", "ram=1e10": "1e10"} {
		refused(t, "GET", url+"/v1/plan?"+query, "", 400, word)
	}
	with(planner{e: m.Engine})
	if v := fetch(t, "GET", url+"/v1/plan?ram=8589934592", ""); v["this_machine"] != nil {
		t.Errorf("%v", v["this_machine"])
	}
	with(planner{err: errors.New("the plan is lost")})
	if status, _, _ := ask(t, "GET", url+"/v1/plan", ""); status != 500 {
		t.Errorf("%d", status)
	}
}
