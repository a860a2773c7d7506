package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"terrace/internal/host"
)

// PullOptions say how models are fetched. The zero value asks for the defaults.
type PullOptions struct {
	Connections int            // at once; 0: 4
	Progress    func(Progress) // called some times a second, from one goroutine; nil: not wanted
}

// Phase is what a pull is doing.
type Phase string

const (
	PhaseWait   Phase = "wait"   // another program fetches the same file
	PhaseFetch  Phase = "fetch"  // bytes come
	PhaseVerify Phase = "verify" // they are compared with the hash
)

// Progress is how far a pull has come.
type Progress struct {
	Phase Phase
	File  string // being worked at
	Done  int64  // bytes of all files fetched, what was there before included; in PhaseVerify: compared of File
	Total int64
	Came  int64 // bytes that came over the network since the pull began
}

const (
	connections = 4
	maxChanges  = 3        // of a file at a URL while it comes
	spare       = 64 << 20 // bytes that a pull leaves free
	lockPoll    = 200 * time.Millisecond
	lockWait    = 10 * time.Second // for those who only make names
	tick        = 200 * time.Millisecond
)

// Pull fetches what the cache lacks of m and answers the path of its first file there. It may be interrupted at any
// moment, by a crash too, and goes on where it stood; a file has its name only when its hash was found right. Two pulls
// of one file, in two processes too, wait for one another. Errors wrap ErrSpace, ErrDamaged, ErrDenied or ErrNotFound
// where these are the reason.
func (c *Client) Pull(ctx context.Context, m *Model, o PullOptions) (string, error) {
	if c.o.Dir == "" {
		return "", errors.New("there is no folder to keep models in")
	}
	if len(m.Files) == 0 {
		return "", fmt.Errorf("%s: no files", m.Name)
	}
	if o.Connections <= 0 {
		o.Connections = connections
	}
	for changes := 0; ; changes++ {
		path, err := c.pull(ctx, m, o)
		if !errors.Is(err, errChanged) || !m.elsewhere || changes == maxChanges {
			return path, err
		}
		c.o.Log.Warn("a download begins anew", "reason", err)
		if m, err = c.findURL(ctx, m.ref); err != nil { // what is there now
			return "", err
		}
	}
}

// pull is Pull of files that do not change meanwhile.
func (c *Client) pull(ctx context.Context, m *Model, o PullOptions) (string, error) {
	need, err := c.Need(m)
	if err != nil {
		return "", err
	}
	if need.Bytes > 0 && need.Free >= 0 && need.Free < need.Bytes+spare {
		return "", fmt.Errorf("%s: %d bytes are missing, and %s has %d bytes free of which %d shall stay: %w", m.Name, need.Bytes, c.o.Dir, need.Free, int64(spare), ErrSpace)
	}
	p := &progress{tell: o.Progress}
	p.set(func(x *Progress) { x.Phase, x.Total = PhaseFetch, m.Size() })
	stop := p.start()
	defer stop()
	first := ""
	for i, f := range m.Files {
		path, err := c.pullFile(ctx, m, f, o, p)
		if err != nil {
			return "", err
		}
		if i == 0 {
			first = path
		}
		p.base += f.Size
	}
	unlock, err := c.namesLock(m)
	if err != nil {
		return "", err
	}
	defer unlock()
	return first, c.remember(m)
}

// namesLock is held by those who make names in the folder of m.
func (c *Client) namesLock(m *Model) (func(), error) {
	dir := filepath.Join(c.o.Dir, ".locks", m.folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return host.LockFile(filepath.Join(dir, "names.lock"), lockWait)
}

func (c *Client) pullFile(ctx context.Context, m *Model, f File, o PullOptions, p *progress) (string, error) {
	p.done.Store(0)
	p.set(func(x *Progress) { x.File, x.Done = f.Path, p.base })
	if _, ok := c.have(m, f); !ok {
		if c.o.Offline {
			return "", fmt.Errorf("offline: %s of %s is not in %s: %w", f.Path, m.Name, c.o.Dir, ErrNotFound)
		}
		unlock, err := c.lock(ctx, m, f, p)
		if err != nil {
			return "", err
		}
		defer unlock()
	}
	if _, ok := c.have(m, f); !ok { // nobody fetched it meanwhile
		p.set(func(x *Progress) { x.Phase = PhaseFetch })
		if err := os.MkdirAll(c.path(m, "blobs"), 0o755); err != nil {
			return "", err
		}
		if err := c.fetch(ctx, f, c.blobPath(m, f), o.Connections, p); err != nil {
			return "", err
		}
	}
	p.done.Store(0)
	p.set(func(x *Progress) { x.Phase, x.Done = PhaseFetch, p.base+f.Size })
	unlock, err := c.namesLock(m)
	if err != nil {
		return "", err
	}
	defer unlock()
	return c.link(m, f)
}

// lock waits until nobody else fetches f.
func (c *Client) lock(ctx context.Context, m *Model, f File, p *progress) (func(), error) {
	dir := filepath.Join(c.o.Dir, ".locks", m.folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for {
		unlock, err := host.LockFile(filepath.Join(dir, f.blob+".lock"), 0)
		if !errors.Is(err, host.ErrLocked) {
			return unlock, err
		}
		p.set(func(x *Progress) { x.Phase = PhaseWait })
		if err := sleep(ctx, lockPoll); err != nil {
			return nil, err
		}
	}
}

// progress collects figures of several goroutines and tells them now and then.
type progress struct {
	tell func(Progress)
	base int64 // bytes of the files before this one
	now  atomic.Pointer[Progress]
	came atomic.Int64
	done atomic.Int64 // of this file
}

// set changes the figures; one goroutine does at a time.
func (p *progress) set(f func(*Progress)) {
	var x Progress
	if old := p.now.Load(); old != nil {
		x = *old
	}
	f(&x)
	p.now.Store(&x)
}

func (p *progress) report() {
	x := *p.now.Load()
	x.Came = p.came.Load()
	if x.Phase == PhaseVerify {
		x.Done = 0
	}
	x.Done += p.done.Load()
	p.tell(x)
}

// start tells from now on; the function it answers tells a last time and ends that.
func (p *progress) start() func() {
	if p.tell == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				p.report()
			case <-quit:
				p.report()
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}
