package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"terrace/internal/host"
	"terrace/plan"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// TestCourse walks the governor's judgement through what machines do.
func TestCourse(t *testing.T) {
	type look struct {
		after time.Duration // since the last one
		s     host.MemorySample
		now   int64 // in force then
		why   string
	}
	// free is a machine of 16 GiB with so much available while the process holds 4.
	free := func(available int64) host.MemorySample {
		return host.MemorySample{Total: 16 * gib, Available: available, Held: 4 * gib}
	}
	group := func(limit, room, failed int64) host.MemorySample {
		s := free(10 * gib)
		s.Limited, s.Limit, s.Room, s.Failed = true, limit, room, failed
		return s
	}
	stall := func(s host.MemorySample, machine, group time.Duration) host.MemorySample {
		s.Machine = host.Pressure{Known: true, SomeTime: machine, FullTime: machine}
		s.Group = host.Pressure{Known: true, SomeTime: group, FullTime: group}
		return s
	}
	swap := func(s host.MemorySample, own, free int64) host.MemorySample {
		s.Swapped, s.SwapTotal, s.SwapFree = own, 8*gib, free
		return s
	}
	const tick = lookEvery
	start := course{budget: 8 * gib, least: 2 * gib, now: 8 * gib}
	low := course{budget: 8 * gib, least: 2 * gib, now: 4 * gib}
	grain := 8 * gib / 256
	for _, c := range []struct {
		name  string
		from  course
		looks []look
	}{
		{"plenty", start, []look{{tick, free(10 * gib), 8 * gib, ""}, {tick, free(9 * gib), 8 * gib, ""}, {time.Hour, free(9 * gib), 8 * gib, ""}}},
		{"nothing known", start, []look{{tick, host.MemorySample{}, 8 * gib, ""}, {time.Hour, host.MemorySample{}, 8 * gib, ""}}},
		{"others take memory", start, []look{
			{tick, free(10 * gib), 8 * gib, ""},
			{tick, free(2 * gib), (6*gib - guard(6*gib)) / grain * grain, reasonMachine}, // 4 held and 2 left
			{tick, free(2 * gib), (6*gib - guard(6*gib)) / grain * grain, ""},
			{tick, host.MemorySample{Total: 16 * gib, Available: gib, Held: 2 * gib}, (3*gib - guard(3*gib)) / grain * grain, reasonMachine},
			{tick, host.MemorySample{Total: 16 * gib, Available: 50 * mib, Held: 2 * gib}, 2 * gib, reasonMachine},
			{tick, host.MemorySample{Total: 16 * gib, Available: mib, Held: 2 * gib}, 2 * gib, ""}, // there is no less
		}},
		{"a limit is lowered", start, []look{
			{tick, group(12*gib, 8*gib, 0), 8 * gib, ""},
			{tick, group(5*gib, gib, 0), (5*gib - guard(5*gib)) / grain * grain, reasonLimit},
			{tick, group(gib, -3*gib, 0), 2 * gib, reasonLimit},
		}},
		{"limits hit with room left are file cache's", start, []look{{tick, group(16*gib, 8*gib, 5), 8 * gib, ""}, {tick, group(16*gib, 8*gib, 500), 8 * gib, ""}}},
		{"limits hit without room", low, []look{
			{tick, group(5*gib, 400*mib, 5), 4 * gib, ""},
			{tick, group(5*gib, 400*mib, 6), 4*gib - 2*gib/8, reasonFailed},
			{tick, group(5*gib, 400*mib, 7), 4*gib - 2*gib/8, ""}, // once a second
			{time.Second, group(5*gib, 400*mib, 8), 4*gib - 2*gib/8 - (2*gib-2*gib/8)/8, reasonFailed},
		}},
		{"others thrash in limits of their own", start, []look{{tick, stall(free(9*gib), 0, 0), 8 * gib, ""}, {tick, stall(free(9*gib), 200*time.Millisecond, 0), 8 * gib, ""}}},
		{"the machine thrashes", low, []look{
			{tick, stall(free(700*mib), 0, 0), 4 * gib, ""},
			{tick, stall(free(700*mib), 5*time.Millisecond, 0), 4 * gib, ""},
			{tick, stall(free(700*mib), 105*time.Millisecond, 0), 4*gib - 2*gib/8, reasonPressure},
		}},
		{"the group thrashes", low, []look{
			{tick, stall(group(5*gib, 500*mib, 0), 0, 0), 4 * gib, ""},
			{tick, stall(group(5*gib, 500*mib, 0), 0, 100*time.Millisecond), 4*gib - 2*gib/8, reasonPressure},
		}},
		{"we are swapped", low, []look{
			{tick, swap(free(9*gib), 0, 8*gib), 4 * gib, ""},
			{tick, swap(free(9*gib), 10*mib, 8*gib), 4*gib - 2*gib/8, reasonSwap},
		}},
		{"others are swapped while there is room", start, []look{{tick, swap(free(9*gib), 0, 8*gib), 8 * gib, ""}, {tick, swap(free(9*gib), 0, 7*gib), 8 * gib, ""}}},
		{"growth waits, and goes by steps", low, []look{
			{tick, free(10 * gib), 4 * gib, ""},
			{2 * time.Second, free(10 * gib), 4 * gib, ""},
			{2 * time.Second, free(10 * gib), 4*gib + gib/2, reasonCalm},
			{tick, free(10 * gib), 4*gib + gib/2, ""},
			{time.Second, free(10 * gib), 5 * gib, reasonCalm},
			{time.Minute, free(10 * gib), 5*gib + gib/2, reasonCalm},
			{time.Minute, free(10 * gib), 6 * gib, reasonCalm},
			{time.Minute, free(10 * gib), 6*gib + gib/2, reasonCalm},
			{time.Minute, free(10 * gib), 7 * gib, reasonCalm},
			{time.Minute, free(10 * gib), 7*gib + gib/2, reasonCalm},
			{time.Minute, free(10 * gib), 8 * gib, reasonCalm},
			{time.Minute, free(100 * gib), 8 * gib, ""},
		}},
		{"growth keeps away from where shrinking begins", low, []look{
			{tick, free(600 * mib), 4 * gib, ""},
			{time.Minute, free(600 * mib), 4*gib + 600*mib - 2*guard(4*gib+600*mib), reasonCalm},
			{time.Minute, free(600 * mib), 4*gib + 600*mib - 2*guard(4*gib+600*mib), ""},
		}},
		{"a promise that was lowered", course{budget: 3 * gib, least: 2 * gib, now: 8 * gib}, []look{{tick, free(10 * gib), 3 * gib, ""}}},
	} {
		at := time.Duration(0)
		x := c.from
		for i, l := range c.looks {
			at += l.after
			var why string
			x, why = x.step(&l.s, at)
			if x.now != l.now || why != l.why {
				t.Errorf("%s, look %d: %d MiB in force for %q, want %d for %q", c.name, i, x.now/mib, why, l.now/mib, l.why)
			}
		}
	}
}

// drawSample is any machine, also an impossible one.
func drawSample(t *rapid.T, name string) host.MemorySample {
	size := func(what string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, name+" "+what) }
	s := host.MemorySample{Total: 16 * gib, Available: size("available", 16*gib), Held: size("held", 12*gib), Swapped: size("swapped", gib), SwapFree: size("swap free", 8*gib)}
	if rapid.Bool().Draw(t, name+" limited") {
		s.Limited, s.Limit, s.Room, s.Failed = true, 8*gib, rapid.Int64Range(-8*gib, 8*gib).Draw(t, name+" room"), size("failed", 100)
	}
	s.Machine = host.Pressure{Known: true, FullTime: time.Duration(size("stall", 1e9))}
	s.Group = host.Pressure{Known: true, FullTime: time.Duration(size("group stall", 1e9))}
	return s
}

// TestCourseKeepsBounds: whatever is seen, the budget in force stays between the smallest working set and the promise, is
// never above what is offered unless that is less than the smallest, and changes exactly when there is a reason.
func TestCourseKeepsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.Int64Range(1, 4*gib).Draw(t, "least")
		c := course{least: least, budget: rapid.Int64Range(least, 32*gib).Draw(t, "budget")}
		c.now = rapid.Int64Range(least, c.budget).Draw(t, "now")
		at := time.Duration(0)
		for range rapid.IntRange(1, 30).Draw(t, "looks") {
			at += time.Duration(rapid.Int64Range(1, int64(20*time.Second)).Draw(t, "after"))
			s := drawSample(t, "look")
			n, why := c.step(&s, at)
			if n.now < c.least || n.now > c.budget {
				t.Fatalf("%d in force, outside of %d to %d", n.now, c.least, c.budget)
			}
			if (why != "") != (n.now != c.now) {
				t.Fatalf("from %d to %d for %q", c.now, n.now, why)
			}
			offer, _, ok := offered(&s)
			if room := offer - guard(offer); ok && n.now > max(room, c.least) {
				t.Fatalf("%d in force, %d offered", n.now, offer)
			}
			if (why == reasonCalm) != (n.now > c.now) {
				t.Fatalf("from %d to %d for %q", c.now, n.now, why)
			}
			c = n
		}
	})
}

// TestCourseIsMonotone: of two machines in the same situation, the one that is worse off in every respect never gets more.
func TestCourseIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := course{least: gib, budget: 16 * gib, now: rapid.Int64Range(gib, 16*gib).Draw(t, "now")}
		at := time.Duration(0)
		for range rapid.IntRange(0, 5).Draw(t, "past") {
			at += time.Duration(rapid.Int64Range(1, int64(20*time.Second)).Draw(t, "after"))
			s := drawSample(t, "past")
			c, _ = c.step(&s, at)
		}
		at += time.Duration(rapid.Int64Range(1, int64(20*time.Second)).Draw(t, "after"))
		good := drawSample(t, "now")
		bad := good
		less := func(what string, n int64) int64 { return n - rapid.Int64Range(0, max(n, 0)).Draw(t, "less "+what) }
		bad.Available = max(1, less("available", bad.Available)) // 0 means that it is not known
		good.Available = max(1, good.Available)
		bad.Room -= rapid.Int64Range(0, 4*gib).Draw(t, "less room")
		bad.SwapFree = less("swap", bad.SwapFree)
		bad.Failed += rapid.Int64Range(0, 3).Draw(t, "failed")
		bad.Swapped += rapid.Int64Range(0, gib).Draw(t, "swapped")
		bad.Machine.FullTime += time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "stall"))
		bad.Group.FullTime += time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "group stall"))
		g, _ := c.step(&good, at)
		b, _ := c.step(&bad, at)
		if b.now > g.now {
			t.Fatalf("worse off and %d in force, better off %d", b.now, g.now)
		}
	})
}

// TestCourseSettles closes the loop: what the process holds follows the budget in force, others hold what they like for
// minutes on end. In each such time the budget moves in one direction only, and then stands still, near what can be had.
func TestCourseSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(4*gib, 64*gib).Draw(t, "total")
		c := course{least: gib, budget: rapid.Int64Range(gib, total).Draw(t, "budget")}
		c.now = c.budget
		at := time.Duration(0)
		limited := rapid.Bool().Draw(t, "limited")
		for phase := range rapid.IntRange(1, 4).Draw(t, "phases") {
			others := rapid.Int64Range(0, total-2*gib).Draw(t, "others")
			fill := rapid.Int64Range(0, 100).Draw(t, "filled")
			noise := rapid.Int64Range(0, 16*mib).Draw(t, "noise")
			up, down, quiet := 0, 0, time.Duration(0)
			var offer int64
			for i := range int(10 * time.Minute / lookEvery) {
				at += lookEvery
				held := c.now * fill / 100
				s := host.MemorySample{Total: total, Held: held, Available: total - others - held}
				if limited {
					s.Limited, s.Limit, s.Room, s.Available = true, total-others, total-others-held, total
				}
				if i%3 == 0 {
					s.Available -= noise
					s.Room -= noise
				}
				n, why := c.step(&s, at)
				offer = total - others - noise
				switch {
				case n.now > c.now:
					up, quiet = up+1, 0
				case n.now < c.now:
					down, quiet = down+1, 0
				default:
					quiet += lookEvery
				}
				if up > 0 && down > 0 {
					t.Fatalf("phase %d: %d up and %d down at constant load, last for %q", phase, up, down, why)
				}
				c = n
			}
			if quiet < time.Minute {
				t.Fatalf("phase %d: still moving after ten minutes", phase)
			}
			grain := max(c.budget/256, mib)
			if want := min(c.budget, offer-2*guard(offer)-noise-grain); c.now < want-grain {
				t.Fatalf("phase %d: %d in force of %d, %d could be had", phase, c.now, c.budget, offer)
			}
		}
	})
}

// fakeArena is an arena of pieces whose size the test sees.
type fakeArena struct {
	size, least, most atomic.Int64
	at                atomic.Int64 // when it was resized, in ns
}

func (a *fakeArena) Resize(n int64) int64 {
	a.size.Store(min(max(n, a.least.Load()), a.most.Load()))
	a.at.Store(time.Now().UnixNano())
	return a.size.Load()
}
func (a *fakeArena) Arena() (int64, int64) { return a.size.Load(), a.size.Load() }
func (a *fakeArena) MinBytes() int64       { return a.least.Load() }

// fakeGroup is a control group in a folder of the test's.
type fakeGroup struct {
	t   *testing.T
	dir string
}

func newFakeGroup(t *testing.T, limit int64) *fakeGroup {
	g := &fakeGroup{t, t.TempDir()}
	g.put("proc/self/cgroup", "0::/g\n")
	g.put("sys/fs/cgroup/g/memory.current", "0\n")
	g.limit(limit)
	return g
}

func (g *fakeGroup) put(name, text string) {
	g.t.Helper()
	p := filepath.Join(g.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		g.t.Fatal(err)
	}
	if old, err := os.ReadFile(p); err == nil && len(old) > len(text) {
		text += strings.Repeat("\n", len(old)-len(text)) // never a moment without a number
	}
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		g.t.Fatal(err)
	}
}

func (g *fakeGroup) limit(bytes int64) {
	g.put("sys/fs/cgroup/g/memory.max", strconv.FormatInt(bytes, 10)+"\n")
}

func testGovernor(t *testing.T, dir string, log *slog.Logger) (*governor, *fakeArena) {
	t.Helper()
	b := Budget{RAM: 4 * gib, Now: 4 * gib, Runtime: gib / 2, Dense: gib / 2, ArenaMin: gib, ArenaMost: 8 * gib, Experts: 100}
	a := new(fakeArena)
	a.size.Store(b.ArenaIn(b.RAM))
	a.least.Store(b.ArenaMin)
	a.most.Store(b.ArenaMost)
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	g := newGovernor(a, b, host.NewWatch(os.DirFS(dir)), log)
	t.Cleanup(func() { debug.SetMemoryLimit(math.MaxInt64) })
	t.Cleanup(g.close)
	return g, a
}

// TestGovernorFollowsLimit lowers a limit under a running governor, below the smallest working set at last, and lifts it.
func TestGovernorFollowsLimit(t *testing.T) {
	group := newFakeGroup(t, 16*gib)
	var text syncBuffer
	g, a := testGovernor(t, group.dir, slog.New(slog.NewTextHandler(&text, nil)))
	g.start()
	time.Sleep(2 * lookEvery)
	if st, b := g.snapshot(); st.Shrinks != 0 || st.Grows != 0 || st.BudgetNow != 4*gib || b.RAM != 4*gib {
		t.Fatalf("%+v, %+v under no limit that matters", st, b)
	}
	for _, limit := range []int64{3 * gib, 5 * gib / 2, gib} {
		before := a.size.Load()
		start := time.Now()
		group.limit(limit)
		for a.size.Load() == before && time.Since(start) < 10*time.Second {
			time.Sleep(time.Millisecond)
		}
		took := time.Unix(0, a.at.Load()).Sub(start)
		if a.size.Load() == before || took > 2*time.Second { // a quarter of a second, were the machine not shared
			t.Fatalf("limit %d: arena of %d bytes, %v after", limit, a.size.Load(), took)
		}
		t.Logf("limit %d MiB: arena of %d MiB after %v", limit/mib, a.size.Load()/mib, took)
		held := rssHeld(t)
		if most := max(limit+held-gib-guard(limit), gib); a.size.Load() > most {
			t.Errorf("limit %d: arena of %d bytes, room for %d", limit, a.size.Load(), most)
		}
	}
	st, b := g.snapshot()
	if st.Shrinks != 3 || st.Reason != reasonLimit || st.BudgetNow != 2*gib+plan.PageTables(gib) || b.RAM != 4*gib || b.Arena != gib {
		t.Errorf("%+v, %+v", st, b)
	}
	if s := text.String(); strings.Count(s, "level=WARN") != 1 || !strings.Contains(s, "limit=3221225472") {
		t.Errorf("log:\n%s", s)
	}
}

func rssHeld(t *testing.T) int64 {
	r, err := host.RSS()
	if err != nil {
		t.Skip(err)
	}
	return r.Now
}

// TestGovernorSet changes the promise by hand.
func TestGovernorSet(t *testing.T) {
	group := newFakeGroup(t, 16*gib)
	g, a := testGovernor(t, group.dir, nil)
	least := 2*gib + plan.PageTables(gib)
	err := g.set(least - 1)
	if !errors.Is(err, ErrDoesNotFit) || !strings.Contains(err.Error(), fmt.Sprint(least-1)) || !strings.Contains(err.Error(), fmt.Sprint(least)) {
		t.Errorf("error %v", err)
	}
	for _, c := range []struct{ limit, budget, now int64 }{
		{16 * gib, 3 * gib, 3 * gib}, {16 * gib, least, least}, {16 * gib, 8 * gib, 8 * gib}, {3 * gib, 8 * gib, 3*gib - guard(3*gib)}, {gib, 8 * gib, least}, {16 * gib, 12 * gib, 12 * gib},
	} {
		group.limit(c.limit)
		if err := g.set(c.budget); err != nil {
			t.Fatal(err)
		}
		st, b := g.snapshot()
		if b.RAM != c.budget || st.BudgetNow < c.now || st.BudgetNow > c.now+64*mib { // what the test holds itself comes on top of the limit's room
			t.Errorf("limit %d, budget %d: %+v %+v, want %d in force", c.limit, c.budget, st, b, c.now)
		}
		if got := gib + plan.Mapped(a.size.Load()); got > st.BudgetNow && a.size.Load() != gib {
			t.Errorf("limit %d, budget %d: %d taken of %d", c.limit, c.budget, got, st.BudgetNow)
		}
		if limit := debug.SetMemoryLimit(-1); limit < gib/2-outsideGo || limit > st.BudgetNow {
			t.Errorf("the Go heap may have %d bytes of %d", limit, st.BudgetNow)
		}
	}
	if a.size.Load() != 8*gib {
		t.Errorf("arena of %d bytes although there is room for all", a.size.Load())
	}
	if st, _ := g.snapshot(); st.Shrinks != 4 || st.Grows != 2 || st.Reason != reasonUser {
		t.Errorf("%+v", st)
	}
}

// TestGovernorAllocatesNothing: a look must not disturb decode steps.
func TestGovernorAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, root := range []*host.Watch{host.NewWatch(nil), host.NewWatch(os.DirFS(newFakeGroup(t, 16*gib).dir))} {
		g, _ := testGovernor(t, t.TempDir(), nil)
		g.watch.Close()
		g.watch = root
		g.look()
		if n := testing.AllocsPerRun(20, g.look); n != 0 {
			t.Errorf("a look allocates %v times", n)
		}
	}
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
