package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"terrace/internal/host"
)

// A soak is a load (load.go) on a server whose RAM budget starves and changes all the time. Each minute goes to a file as a line
// of JSON as soon as it is over, so that sessions add up while the code is the same.

// SoakMinute is a line of the file: a minute of a session, or, with Failed, the verdict on one that went wrong.
type SoakMinute struct {
	Commit   string   `json:"commit"`
	Session  int64    `json:"session"` // when it began, in seconds of Unix
	Minute   int      `json:"minute"`  // of the session, from 1 on
	RSS      int64    `json:"rss_bytes"`
	Held     int64    `json:"held_bytes"` // of that, beside experts and prompts kept; the mean of the minute
	Requests int      `json:"requests"`
	Same     int      `json:"same_answers"`
	Wrong    int      `json:"wrong_answers"`
	Errors   int      `json:"errors"`
	Refused  int      `json:"refused"`
	Left     int      `json:"cancelled"`
	Resizes  int      `json:"resizes"`
	TTFT50   float64  `json:"ttft_p50_ms"`
	TTFT99   float64  `json:"ttft_p99_ms"`
	Failed   bool     `json:"failed,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// soakShares are the budgets in turn, as shares of the way from the least that works to the one with a slot for every expert.
var soakShares = []float64{0, 0.3, 0.1, 0.5, 0.05, 0.2}

// resize changes the server's budget every so often, until ctx ends; then it has the one of its start again.
func (l *loader) resize(ctx context.Context) {
	var v struct {
		Budget struct {
			Start int64 `json:"ram_start"`
			Least int64 `json:"ram_least"`
			Full  int64 `json:"ram_full"`
		} `json:"budget"`
	}
	if err := l.call(ctx, "GET", "/v1/tiers", nil, &v); err != nil {
		if ctx.Err() == nil {
			l.fault("/v1/tiers: %v", err)
		}
		return
	}
	b := &v.Budget
	set := func(ctx context.Context, ram int64) {
		if err := l.call(ctx, "POST", "/v1/tiers/budget", map[string]any{"ram": ram}, nil); err != nil && ctx.Err() == nil {
			l.fault("a budget of %d bytes, where %d are the least: %v", ram, b.Least, err)
			return
		}
		l.resizes.Add(1)
	}
	t := time.NewTicker(l.c.Resize)
	defer t.Stop()
	most := min(b.Start, b.Full)
	for i := 0; ; i++ {
		select {
		case <-t.C:
			set(ctx, b.Least+int64(soakShares[i%len(soakShares)]*float64(max(most-b.Least, 0))))
		case <-ctx.Done():
			set(context.WithoutCancel(ctx), b.Start)
			return
		}
	}
}

// minutes tells the minutes of a load as they end.
type minutes struct {
	n      int // told
	last   SoakMinute
	ttft   map[string]int // by kind: of those times, how many were told
	sample int
}

// minute tells the one that has just ended, if one has. The caller holds l.mu.
func (l *loader) minute(seconds float64) (m SoakMinute, over bool) {
	t := &l.told
	if seconds < float64(t.n+1)*60 {
		return m, false
	}
	t.n++
	now := SoakMinute{Resizes: int(l.resizes.Load())}
	var ttft []float64
	for name, k := range l.kinds {
		now.Requests, now.Same, now.Wrong, now.Errors = now.Requests+k.Requests, now.Same+k.Same, now.Wrong+k.Wrong, now.Errors+k.Errors
		now.Refused, now.Left = now.Refused+k.Refused, now.Left+k.Cancelled
		ttft = append(ttft, k.ttft[t.ttft[name]:]...)
		if t.ttft == nil {
			t.ttft = map[string]int{}
		}
		t.ttft[name] = len(k.ttft)
	}
	was := t.last
	t.last = now
	m = SoakMinute{Minute: t.n, Requests: now.Requests - was.Requests, Same: now.Same - was.Same, Wrong: now.Wrong - was.Wrong, Errors: now.Errors - was.Errors,
		Refused: now.Refused - was.Refused, Left: now.Left - was.Left, Resizes: now.Resizes - was.Resizes, TTFT50: quantile(ttft, 0.5), TTFT99: quantile(ttft, 0.99)}
	if s := l.samples[t.sample:]; len(s) > 0 {
		for i := range s {
			m.RSS, m.Held = m.RSS+s[i].RSS, m.Held+s[i].held()
		}
		m.RSS, m.Held = m.RSS/int64(len(s)), m.Held/int64(len(s))
	}
	t.sample = len(l.samples)
	return m, true
}

// SoakConfig is a soak of so many minutes in all; the duration of Load is of no account.
type SoakConfig struct {
	Load    LoadConfig
	File    string // of SoakMinutes
	Commit  string // the code under test: sessions of other code do not count
	Minutes int
}

// SoakLeft is how many minutes are left to do, by what the file tells of good sessions of this code.
func SoakLeft(file, commit string, minutes int) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return 0, err
	}
	done := map[int64]int{}
	failed := map[int64]bool{}
	for line := range bytes.Lines(b) {
		var m SoakMinute
		if json.Unmarshal(line, &m) != nil || m.Commit != commit { // a line may have been cut off
			continue
		}
		failed[m.Session] = failed[m.Session] || m.Failed || m.Wrong > 0 || m.Errors > 0
		done[m.Session] = max(done[m.Session], m.Minute)
	}
	for s, n := range done {
		if !failed[s] {
			minutes -= n
		}
	}
	return max(minutes, 0), nil
}

// Soak does what is left of a soak, in one session. A report without problems is a good one; nil: nothing was left.
func Soak(ctx context.Context, c SoakConfig) (*LoadReport, error) {
	left, err := SoakLeft(c.File, c.Commit, c.Minutes)
	if err != nil || left == 0 {
		return nil, err
	}
	f, err := host.AppendLines(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	session := time.Now().Unix()
	var all []SoakMinute
	var broken error
	put := func(m SoakMinute) {
		m.Commit, m.Session = c.Commit, session
		b, err := json.Marshal(m)
		if err == nil {
			_, err = f.Write(append(b, '\n'))
		}
		if err == nil {
			err = f.Sync()
		}
		if err != nil && broken == nil {
			broken = err
		}
	}
	c.Load.Duration = time.Duration(left)*time.Minute + 2*c.Load.Every // the last minute is told by a look after its end
	c.Load.minute = func(m SoakMinute) {
		all = append(all, m)
		put(m)
	}
	r, err := Load(ctx, c.Load)
	if err != nil {
		return nil, err
	}
	if p := drifts(all); p != "" {
		r.Problems = append(r.Problems, p)
	}
	if len(all) < left {
		r.Problems = append(r.Problems, fmt.Sprintf("%d minutes of %d were told", len(all), left))
	}
	if len(r.Problems) > 0 {
		put(SoakMinute{Failed: true, Problems: r.Problems})
	}
	return r, broken
}

// driftLeast is what memory may grow by in a session before its slope is looked at: allocators do not give back at once.
const driftLeast = 8 << 20

// drifts says that memory grew over the minutes of a session, the first quarter left out, in which a server warms up: by more
// than three standard errors of the slope and by more than driftLeast. "": it did not, or nobody can tell by so few minutes.
func drifts(all []SoakMinute) string {
	s := all[len(all)/4:]
	if len(s) < 4 {
		return ""
	}
	n, mx, my := float64(len(s)), 0.0, 0.0
	for i := range s {
		mx, my = mx+float64(s[i].Minute)/n, my+float64(s[i].Held)/n
	}
	xx, xy, rest := 0.0, 0.0, 0.0
	for i := range s {
		x := float64(s[i].Minute) - mx
		xx, xy = xx+x*x, xy+x*(float64(s[i].Held)-my)
	}
	slope := xy / xx
	for i := range s {
		d := float64(s[i].Held) - my - slope*(float64(s[i].Minute)-mx)
		rest += d * d
	}
	noise := math.Sqrt(rest / (n - 2) / xx)
	if grown := slope * (n - 1); slope <= 3*noise || grown <= driftLeast {
		return ""
	}
	return fmt.Sprintf("memory beside experts and prompts grows by %.2f MiB a minute over %d minutes, with a standard error of %.2f", slope/(1<<20), len(s), noise/(1<<20))
}

// SoakText is the summary of a file's sessions of this code in a line.
func SoakText(file, commit string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var n SoakMinute
	var p50, p99 []float64
	lines := 0
	for line := range bytes.Lines(b) {
		var m SoakMinute
		if json.Unmarshal(line, &m) != nil || m.Commit != commit || m.Failed {
			continue
		}
		lines++
		n.Requests, n.Same, n.Wrong, n.Errors, n.Resizes = n.Requests+m.Requests, n.Same+m.Same, n.Wrong+m.Wrong, n.Errors+m.Errors, n.Resizes+m.Resizes
		p50, p99 = append(p50, m.TTFT50), append(p99, m.TTFT99)
	}
	if lines == 0 {
		return fmt.Sprintf("no minutes of %s", commit), nil
	}
	return fmt.Sprintf("%d minutes of %s: %d requests, %d answers the same, %d wrong, %d errors, %d resizes; first token p50 %.0f to %.0f ms, p99 %.0f to %.0f ms by minute", lines, commit,
		n.Requests, n.Same, n.Wrong, n.Errors, n.Resizes, slices.Min(p50), slices.Max(p50), slices.Min(p99), slices.Max(p99)), nil
}
