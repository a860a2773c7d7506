package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"terrace/engine"
	"terrace/internal/host"
)

// loadPatience is how long a model may load before anything is shown: a bar that only flashes tells nothing.
const loadPatience = 300 * time.Millisecond

// loadView shows on a terminal what the loading of a model is busy with. Its methods but progress are for one goroutine.
type loadView struct {
	bars  *mpb.Progress
	bar   *mpb.Bar
	start time.Time
	now   atomic.Pointer[loadState]
}

type loadState struct {
	engine.LoadProgress
	since time.Time // when the step began
}

// newLoadView shows nothing unless standard error is a terminal.
func newLoadView(e env) *loadView {
	v := &loadView{start: time.Now()}
	if f, ok := e.tty.errFile(); ok && host.IsTerminal(f) && e.getenv("TERM") != "dumb" {
		v.bars = mpb.New(mpb.WithOutput(f), mpb.WithRefreshRate(100*time.Millisecond))
	}
	return v
}

// progress is engine.Options.Progress.
func (v *loadView) progress(p engine.LoadProgress) {
	if v.bars == nil {
		return
	}
	since := time.Now()
	if old := v.now.Load(); old != nil && old.Step == p.Step {
		since = old.since
	}
	v.now.Store(&loadState{p, since})
	if time.Since(v.start) < loadPatience || p.Step == engine.LoadDone {
		return
	}
	if v.bar == nil {
		v.bar = v.bars.New(1000, mpb.BarStyle(), mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return v.text() + " " })))
	}
	if p.Total > 0 {
		v.bar.SetCurrent(min(1000*p.Done/p.Total, 999)) // it ends when the loading does
	}
}

// text words the step, with the time it still takes where that can be told.
func (v *loadView) text() string {
	p := v.now.Load()
	if p.Total <= 0 {
		return "loading: " + string(p.Step)
	}
	s := fmt.Sprintf("loading: %s, %s of %s", p.Step, bytesText(p.Done), bytesText(p.Total))
	if d := time.Since(p.since); p.Done > 0 && p.Done < p.Total && d > loadPatience {
		rate := float64(p.Done) / d.Seconds()
		left := time.Duration(float64(p.Total-p.Done) / rate * float64(time.Second))
		s += fmt.Sprintf(", %s/s, %v left", bytesText(int64(rate)), left.Round(time.Second))
	}
	return s
}

// end takes the bar away.
func (v *loadView) end() {
	if v.bars == nil {
		return
	}
	if v.bar != nil {
		v.bar.Abort(true)
	}
	v.bars.Wait()
}

// tty is the streams of a command as they are, for those who need a terminal.
type tty struct {
	in  io.Reader
	out io.Writer
	err *diverter
}

// errFile is standard error, if it is a file.
func (t *tty) errFile() (*os.File, bool) {
	f, ok := t.err.w.(*os.File)
	return f, ok
}
