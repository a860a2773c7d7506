package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"terrace/bench"
)

// TestLoad puts a server under a short load: nothing is wrong with it, and what a proxy spoils is found.
func TestLoad(t *testing.T) {
	at, stop := serving(t, map[string]string{"XDG_CACHE_HOME": t.TempDir()}, "--metrics", "--slot-save-path", t.TempDir(), "-np", "3", "--ram", "300M", "-c", "1000", "--cache-ram", "8")
	load := func(url string) (int, bench.LoadReport, string) {
		t.Helper()
		code, out, errs := terrace("", "bench", "load", "--url", url, "--clients", "6", "--time", "3s", "--cases", "14", "-n", "6", "--every", "200ms", "--resize", "250ms", "--json")
		var r bench.LoadReport
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("exit %d: %v\n%s%s", code, err, out, errs)
		}
		return code, r, errs
	}
	code, r, errs := load(at)
	if code != exitOK || len(r.Problems) > 0 {
		t.Errorf("exit %d: %q\n%s", code, r.Problems, errs)
	}
	if r.All.Same == 0 || r.All.Cancelled == 0 || r.Bad.Refused == 0 || r.Slots != 3 || r.PredictedPerSecond <= 0 || r.Emptied == nil || r.Emptied.Pages != 0 || len(r.Samples) < 3 || r.End.Goroutines == 0 || r.All.TTFT99 < r.All.TTFT50 || r.All.TTFT50 <= 0 {
		t.Errorf("%+v", r)
	}

	target, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	var answers atomic.Int64
	p := httputil.NewSingleHostReverseProxy(target)
	p.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	p.ModifyResponse = func(res *http.Response) error {
		if res.Request.URL.Path != "/completion" || res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") == "text/event-stream" || answers.Add(1) < 8 {
			return nil
		}
		b, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		b = bytes.Replace(b, []byte(`"tokens":[`), []byte(`"tokens":[7,`), 1)
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		res.Header.Set("Content-Length", strconv.Itoa(len(b)))
		return nil
	}
	liar := httptest.NewServer(p)
	code, r, errs = load(liar.URL)
	liar.Close()
	if code != exitFailure || r.All.Wrong == 0 || len(r.Problems) == 0 || !strings.Contains(strings.Join(r.Problems, " "), "tokens differ") {
		t.Errorf("answers that were changed: exit %d, %d wrong: %q\n%s", code, r.All.Wrong, r.Problems, errs)
	}
	if exit, errs := stop(); exit != exitOK {
		t.Errorf("exit %d: %s", exit, errs)
	}
	for args, want := range map[string]string{
		"--url ftp://x": "ftp", "--url http://127.0.0.1:1 -m x.gguf": "--url", "--url http://127.0.0.1:1 --clients 0": "0 clients", "--url http://127.0.0.1:1 --leave 2": "2",
	} {
		code, _, errs := terrace("", append([]string{"bench", "load"}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %s", args, code, errs)
		}
	}
}
