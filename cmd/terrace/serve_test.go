package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// serving starts terrace serve in this process and gives its address once it is ready.
func serving(t *testing.T, vars map[string]string, args ...string) (url string, stop func() (code int, errs string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, append([]string{"terrace", "serve", "-m", tinyMoE, "--heat", "off", "--port", "0"}, args...), env{
			in: strings.NewReader(""), out: io.Discard, err: w, getenv: func(k string) string { return vars[k] },
		})
		w.Close()
	}()
	var log strings.Builder
	address := regexp.MustCompile(`listening on (http://[^,]+),`)
	ready := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		in := bufio.NewScanner(r)
		at := ""
		for in.Scan() {
			log.WriteString(in.Text() + "\n")
			if m := address.FindStringSubmatch(in.Text()); m != nil {
				at = m[1]
			}
			if strings.Contains(in.Text(), "ready:") {
				ready <- at
			}
		}
		close(ready)
	}()
	stop = func() (int, string) {
		cancel()
		select {
		case code := <-done:
			<-read
			return code, log.String()
		case <-time.After(20 * time.Second):
			t.Fatal("serve does not end")
		}
		return 0, ""
	}
	select {
	case url = <-ready:
	case <-time.After(30 * time.Second):
		t.Fatal("serve is never ready")
	}
	if url == "" {
		_, errs := stop()
		t.Fatalf("serve ended: %s", errs)
	}
	return url, stop
}

func fetch(t *testing.T, method, url, body, key string) (int, map[string]any) {
	t.Helper()
	q, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		q.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var v map[string]any
	json.NewDecoder(res.Body).Decode(&v)
	return res.StatusCode, v
}

func TestServe(t *testing.T) {
	slots := t.TempDir()
	vars := map[string]string{
		"LLAMA_ARG_CTX_SIZE": "600", "LLAMA_ARG_N_PARALLEL": "3", "LLAMA_API_KEY": "one,two", "LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_TEMP": "0",
		"LLAMA_ARG_ALIAS": "from-the-environment", "XDG_CACHE_HOME": t.TempDir(),
	}
	url, stop := serving(t, vars, "-a", "tiny,small", "--slot-save-path", slots, "--expert-ram", "40%", "-fa", "on", "-ngl", "99", "--jinja", "--no-ui",
		"--reasoning-format", "none", "-cram", "16", "--top-k", "7", "-t", "-1", "--no-mmap", "-ub", "64", "--metrics")
	if code, _ := fetch(t, "GET", url+"/props", "", ""); code != 401 {
		t.Errorf("without a key: %d", code)
	}
	code, props := fetch(t, "GET", url+"/props", "", "two")
	if code != 200 {
		t.Fatal(code, props)
	}
	settings := props["default_generation_settings"].(map[string]any)
	p := settings["params"].(map[string]any)
	if props["total_slots"] != 3.0 || settings["n_ctx"] != 600.0 || props["model_alias"] != "tiny" || p["temperature"] != 0.0 || p["top_k"] != 7.0 || props["endpoint_metrics"] != true {
		t.Errorf("%v", props)
	}
	code, r := fetch(t, "POST", url+"/v1/chat/completions", `{"messages":[{"role":"user","content":"What is the capital of France?"}]}`, "one")
	if b, _ := json.Marshal(r); code != 200 || !strings.Contains(string(b), "Paris") || r["model"] != "tiny" {
		t.Errorf("%d %s", code, b)
	}
	if code, r := fetch(t, "POST", url+"/slots/0?action=save", `{"filename":"a.bin"}`, "one"); code != 200 {
		t.Errorf("%d %v", code, r)
	} else if files, _ := filepath.Glob(filepath.Join(slots, "a.bin")); len(files) != 1 {
		t.Error("no file was saved")
	}
	exit, errs := stop()
	if exit != exitOK || strings.Contains(errs, "secret") {
		t.Errorf("exit %d: %s", exit, errs)
	}
	for _, want := range []string{"--flash-attn is ignored", "--no-mmap is ignored", "--ubatch-size is ignored"} {
		if !strings.Contains(errs, want) {
			t.Errorf("nothing says %q:\n%s", want, errs)
		}
	}
	if strings.Contains(errs, "jinja") || strings.Contains(errs, "no API key") {
		t.Errorf("too much is said:\n%s", errs)
	}
}

func TestServeOpen(t *testing.T) {
	url, stop := serving(t, nil, "--expert-ram", "min", "-c", "300", "--no-slots", "--api-prefix", "/x")
	if code, _ := fetch(t, "GET", url+"/x/v1/models", "", ""); code != 200 {
		t.Errorf("%d", code)
	}
	if code, _ := fetch(t, "GET", url+"/x/slots", "", ""); code != 501 {
		t.Errorf("%d", code)
	}
	if exit, errs := stop(); exit != exitOK || !strings.Contains(errs, "no API key") {
		t.Errorf("exit %d: %s", exit, errs)
	}
}

func TestServeRefuses(t *testing.T) {
	for args, want := range map[string]struct {
		code int
		say  string
	}{
		"--port 70000":                       {exitUsage, "70000"},
		"-np 0":                              {exitUsage, "--parallel"},
		"--api-key ,":                        {exitUsage, "--api-key is empty"},
		"--api-key-file no/such":             {exitFailure, "no/such"},
		"--slot-save-path no/such":           {exitFailure, "no/such"},
		"--reasoning perhaps":                {exitUsage, "perhaps"},
		"--reasoning-format fine":            {exitUsage, "fine"},
		"--chat-template-kwargs [1]":         {exitUsage, "object"},
		"--chat-template llama2":             {exitUsage, "llama2"},
		"--samplers top_k;nonsense":          {exitUsage, "nonsense"},
		"--top-p 2":                          {exitUsage, "top_p"},
		"--api-prefix x":                     {exitUsage, "prefix"},
		"--json-schema {":                    {exitUsage, "JSON"},
		"--timeout 0":                        {exitUsage, "--timeout"},
		"--no-such-flag":                     {exitUsage, "no-such-flag"},
		"question":                           {exitUsage, "question"},
		"--ram 20M":                          {exitNoFit, "20971520"},
		"-c 1024 -np 64 --ram 60M":           {exitNoFit, "62914560"},
		"--host 127.0.0.1 -m no/such.gguf":   {exitFailure, "no/such.gguf"},
		"--chat-template {{broken":           {exitFailure, "chat_template"},
		"--host 256.0.0.1":                   {exitFailure, "256.0.0.1"},
		"--chat-template-file no/such.jinja": {exitFailure, "no/such.jinja"},
	} {
		code, out, errs := terrace("", append([]string{"serve", "-m", tinyMoE, "--heat", "off", "--port", "0"}, strings.Fields(args)...)...)
		lines := strings.Split(strings.TrimSpace(errs), "\n")
		if last := lines[len(lines)-1]; code != want.code || !strings.Contains(last, want.say) || out != "" {
			t.Errorf("%s: exit %d, %q, want %d and %q", args, code, errs, want.code, want.say)
		}
	}
	code, _, errs := terrace("", "serve", "--help")
	if code != exitOK || strings.Contains(errs, "Error") {
		t.Errorf("help: exit %d, %s", code, errs)
	}
}

func TestServeTwins(t *testing.T) {
	for flag, want := range map[string]string{
		"model": "LLAMA_ARG_MODEL", "ctx-size": "LLAMA_ARG_CTX_SIZE", "host": "LLAMA_ARG_HOST", "port": "LLAMA_ARG_PORT", "parallel": "LLAMA_ARG_N_PARALLEL",
		"gpu-layers": "LLAMA_ARG_N_GPU_LAYERS", "threads": "LLAMA_ARG_THREADS", "api-key": "LLAMA_API_KEY", "alias": "LLAMA_ARG_ALIAS", "predict": "LLAMA_ARG_N_PREDICT",
		"batch-size": "LLAMA_ARG_BATCH", "ubatch-size": "LLAMA_ARG_UBATCH", "jinja": "LLAMA_ARG_JINJA", "flash-attn": "LLAMA_ARG_FLASH_ATTN",
		"cont-batching": "LLAMA_ARG_CONT_BATCHING", "load-mode": "LLAMA_ARG_LOAD_MODE", "hf-repo": "LLAMA_ARG_HF_REPO", "hf-token": "HF_TOKEN",
	} {
		if got := twin(flag); got != want {
			t.Errorf("%s: %s, want %s", flag, got, want)
		}
	}
	for _, c := range []struct {
		vars map[string]string
		args []string
		code int
		say  string
	}{
		{map[string]string{"LLAMA_ARG_PORT": "many"}, nil, exitUsage, "LLAMA_ARG_PORT"},
		{map[string]string{"LLAMA_ARG_ENDPOINT_METRICS": "perhaps"}, nil, exitUsage, "LLAMA_ARG_ENDPOINT_METRICS"},
		{map[string]string{"LLAMA_ARG_TIMEOUT": "0"}, nil, exitUsage, "--timeout is 0"},
		{map[string]string{"LLAMA_ARG_TIMEOUT": "5", "LLAMA_ARG_REASONING": "x"}, []string{"--timeout", "-3"}, exitUsage, "--timeout is -3"}, // the line wins
	} {
		var errs strings.Builder
		code := run(t.Context(), append([]string{"terrace", "serve", "-m", tinyMoE}, c.args...), env{in: strings.NewReader(""), out: io.Discard, err: &errs, getenv: func(k string) string { return c.vars[k] }})
		if code != c.code || !strings.Contains(errs.String(), c.say) {
			t.Errorf("%v %q: exit %d, %s", c.vars, c.args, code, errs.String())
		}
	}
}
