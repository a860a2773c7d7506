package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// LoadSample is what a server holds at one time.
type LoadSample struct {
	Seconds    float64 `json:"seconds"` // since the load began
	Goroutines int     `json:"goroutines"`
	Files      int     `json:"open_files"`
	RSS        int64   `json:"rss_bytes"`
	Heap       int64   `json:"go_heap_bytes"`
	Processing int     `json:"slots_busy"`
	Deferred   int     `json:"waiting"`
	Inside     int     `json:"inside"`      // completions that wait or run
	Bodies     int64   `json:"body_bytes"`  // of requests
	Leases     int     `json:"leases"`      // experts lent
	Pages      int     `json:"pages_taken"` // of context, by slots that are busy or keep their sequence
	PagesMost  int     `json:"pages"`
	CacheRAM   int64   `json:"prompt_cache_bytes"`
	Grammars   int64   `json:"grammar_bytes"`
	Arena      int64   `json:"arena_bytes"` // slots for experts

	predicted, prompt, cached, postponed float64
}

// held is what of RSS must not grow for ever: slots for experts and kept prompts have sizes of their own.
func (s *LoadSample) held() int64 { return s.RSS - s.CacheRAM - s.Arena }

// look reads the server's metrics.
func (l *loader) look(ctx context.Context) (s LoadSample, err error) {
	res, err := l.send(ctx, "GET", "/metrics", nil)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return s, &statusError{res.StatusCode, string(text)}
	}
	m := map[string]float64{}
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		name, value, ok := strings.Cut(in.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			m[name] = v
		}
	}
	if err := in.Err(); err != nil {
		return s, err
	}
	if _, ok := m["go_goroutines"]; !ok {
		return s, fmt.Errorf("%s/metrics tells no number of goroutines: it is not Terrace's", l.c.URL)
	}
	return LoadSample{
		Goroutines: int(m["go_goroutines"]), Files: int(m["process_open_fds"]), RSS: int64(m["process_resident_memory_bytes"]), Heap: int64(m["go_memstats_heap_inuse_bytes"]),
		Processing: int(m["llamacpp:requests_processing"]), Deferred: int(m["llamacpp:requests_deferred"]), Inside: int(m["terrace_requests_inside"]),
		Bodies: int64(m["terrace_request_body_bytes"]), Leases: int(m["terrace_expert_leases"]), Pages: int(m[`terrace_context_pages{state="taken"}`]),
		PagesMost: int(m[`terrace_context_pages{state="all"}`]), CacheRAM: int64(m[`terrace_prompt_cache_bytes{where="ram"}`]), Grammars: int64(m["terrace_grammar_bytes"]), Arena: int64(m[`terrace_arena_bytes{arena="now"}`]),
		predicted: m["llamacpp:tokens_predicted_total"], prompt: m["llamacpp:prompt_tokens_total"], cached: m["llamacpp:prompt_tokens_cached_total"],
		postponed: m["terrace_postponed_total"],
	}, nil
}

// watch looks at the server from time to time.
func (l *loader) watch(ctx context.Context, start time.Time) {
	t := time.NewTicker(l.c.Every)
	defer t.Stop()
	told := start
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		s, err := l.look(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.fault("/metrics: %v", err)
			continue
		}
		s.Seconds = time.Since(start).Seconds()
		l.mu.Lock()
		l.samples = append(l.samples, s)
		minute, over := l.minute(s.Seconds)
		same, wrong := 0, 0
		for _, k := range l.kinds {
			same, wrong = same+k.Same, wrong+k.Wrong+k.Errors
		}
		l.mu.Unlock()
		if over && l.c.minute != nil {
			l.c.minute(minute)
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			l.say("%.0f s: %d answers the same, %d not; %d slots busy, %d wait; RSS %.1f MiB, prompt cache %.1f MiB, %d goroutines", s.Seconds, same, wrong, s.Processing, s.Deferred,
				float64(s.RSS)/(1<<20), float64(s.CacheRAM)/(1<<20), s.Goroutines)
		}
	}
}

// idlePatience is how long a server may take until it has noticed that its clients are gone.
const idlePatience = 20 * time.Second

// idle waits until nothing runs, and looks. What does not end in time is in the sample.
func (l *loader) idle(ctx context.Context) (s LoadSample, err error) {
	until := time.Now().Add(idlePatience)
	was := -1
	for {
		if s, err = l.look(ctx); err != nil || ctx.Err() != nil {
			return s, err
		}
		quiet := s.Processing+s.Deferred+s.Inside == 0 && s.Bodies == 0 && s.Goroutines == was // those of connections end a little later
		if quiet || time.Now().After(until) {
			return s, nil
		}
		was = s.Goroutines
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// empty erases the slots, where the server allows it.
func (l *loader) empty(ctx context.Context) error {
	for i := range l.rep.Slots {
		err := l.call(ctx, "POST", fmt.Sprintf("/slots/%d?action=erase", i), nil, nil)
		if s, ok := err.(*statusError); ok && s.status == http.StatusNotImplemented {
			return nil
		}
		if err != nil {
			l.fault("slot %d is not erased: %v", i, err)
			return nil
		}
	}
	s, err := l.idle(ctx)
	l.rep.Emptied = &s
	return err
}
