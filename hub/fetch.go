package hub

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const copyBytes = 256 << 10 // written at once

// fetch makes blob the content f. Whoever calls it holds the lock of f.
func (c *Client) fetch(ctx context.Context, f File, blob string, workers int, p *progress) error {
	part, side := blob+partSuffix, blob+stateSuffix
	discard := func() error { return errors.Join(removeIfThere(part), removeIfThere(side)) }
	for again := false; ; again = true {
		a := &attempt{c: c, f: f, part: part, side: side, p: p, src: &source{address: f.URL, name: f.Path, size: f.Size}}
		err := a.run(ctx, workers)
		switch {
		case err == nil:
			if err := os.Rename(part, blob); err != nil {
				return err
			}
			syncDir(filepath.Dir(blob))
			return removeIfThere(side)
		case errors.Is(err, ErrDamaged) && a.resumed && !again:
			c.o.Log.Warn("a download begins anew: what was there before may have been of another content", "file", f.Path, "reason", err)
			if err := discard(); err != nil {
				return err
			}
		case errors.Is(err, ErrDamaged), errors.Is(err, errChanged):
			return errors.Join(err, discard())
		default:
			return err
		}
	}
}

// attempt is one way from what is on the disk to the whole file.
type attempt struct {
	c          *Client
	f          File
	part, side string
	src        *source
	p          *progress
	resumed    bool // something was there

	file    diskFile
	mu      sync.Mutex
	have    spans
	synced  int64 // bytes that the saved state counts
	answer  string
	todo    []span
	one     bool // the server gives no ranges: one connection, from the beginning
	changes uint64
}

func (a *attempt) run(ctx context.Context, workers int) (err error) {
	s, err := readState(a.side)
	if err == nil && s.fits(a.f) {
		if st, err := os.Stat(a.part); err == nil && st.Size() == a.f.Size { // else the file is not what the state speaks of
			a.have, a.answer = s.Have, s.Answer
		}
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		a.c.o.Log.Warn("the state of an interrupted download cannot be read", "reason", err)
	}
	a.synced = a.have.size()
	a.resumed = a.synced > 0
	if !a.resumed { // a part without a state is nothing, and no state may outlive its part
		if err := errors.Join(removeIfThere(a.side), removeIfThere(a.part)); err != nil {
			return err
		}
	}
	if a.file, err = a.c.o.disk.open(a.part); err != nil {
		return err
	}
	defer func() {
		if cerr := a.file.Close(); err == nil {
			err = cerr
		}
	}()
	if err := a.file.Truncate(a.f.Size); err != nil {
		return a.diskError(err)
	}
	a.p.done.Store(a.synced)
	for {
		a.todo = a.have.gaps(a.f.Size, a.c.o.piece)
		if a.one && len(a.todo) > 0 {
			a.todo, workers = []span{{a.todo[0][0], a.f.Size}}, 1
		}
		err = a.download(ctx, workers)
		if !errors.Is(err, errNoRanges) || a.one {
			break
		}
		a.one = true
	}
	if serr := a.save(); err == nil { // what came counts, whatever went wrong
		err = serr
	}
	if err != nil {
		return err
	}
	if n := a.have.size(); n != a.f.Size {
		panic(fmt.Sprintf("hub: %d bytes of %s came, want %d", n, a.f.Path, a.f.Size))
	}
	return a.verify(ctx)
}

// download lets workers fetch what is to do, and saves the state meanwhile.
func (a *attempt) download(ctx context.Context, workers int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range min(workers, len(a.todo)) {
		wg.Go(func() {
			if err := a.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	t := time.NewTicker(a.c.o.save)
	defer t.Stop()
	for {
		select {
		case <-done:
			return context.Cause(ctx)
		case <-t.C:
			if err := a.save(); err != nil {
				cancel(err)
			}
		}
	}
}

// work fetches pieces until none is left.
func (a *attempt) work(ctx context.Context) error {
	for {
		a.mu.Lock()
		if len(a.todo) == 0 {
			a.mu.Unlock()
			return nil
		}
		x := a.todo[0]
		a.todo = a.todo[1:]
		a.mu.Unlock()
		var fails failures
		for seen := a.progress(); x[0] < x[1]; {
			err := a.piece(ctx, &x)
			if err == nil {
				continue
			}
			if n := a.progress(); n != seen { // as long as any bytes come, it is worth going on
				seen, fails = n, failures{}
			}
			if err = fails.next(ctx, a.c, err); err != nil {
				return err
			}
		}
	}
}

func (a *attempt) progress() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changes
}

// piece fetches bytes of x with one request and moves its beginning behind what came.
func (a *attempt) piece(ctx context.Context, x *span) error {
	s, err := a.c.open(ctx, a.src, x[0], x[1])
	if err != nil {
		return err
	}
	defer s.body.Close()
	if s.whole && !a.one && (*x != span{0, a.f.Size}) {
		return errNoRanges
	}
	if err := a.same(s.etag); err != nil {
		return err
	}
	buf := make([]byte, copyBytes)
	left := min(s.n, x[1]-x[0])
	for left > 0 {
		n, err := s.body.Read(buf[:min(int64(len(buf)), left)])
		if n > 0 {
			if _, werr := a.file.WriteAt(buf[:n], x[0]); werr != nil {
				return a.diskError(werr)
			}
			a.mu.Lock()
			before := a.have.size()
			a.have = a.have.add(span{x[0], x[0] + int64(n)})
			a.p.done.Add(a.have.size() - before)
			a.changes++
			a.mu.Unlock()
			a.p.came.Add(int64(n))
			x[0] += int64(n)
			left -= int64(n)
		}
		if err != nil && left > 0 {
			return fmt.Errorf("%s: %w", a.f.Path, short(err))
		}
	}
	return nil
}

// same compares what names the content of an answer with that of the answers before. Where the hash of the file is known, it
// decides in the end, and stores that give one content several names do no harm.
func (a *attempt) same(etag string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.f.SHA256 != "" || a.f.git {
		return nil
	}
	want := cmp.Or(a.answer, a.f.ETag)
	if want != "" && etag != "" && etag != want {
		return fmt.Errorf("%s: %w (%q, then %q)", a.f.Path, errChanged, want, etag)
	}
	a.answer = cmp.Or(a.answer, etag)
	return nil
}

// save makes what came safe and then says so.
func (a *attempt) save() error {
	a.mu.Lock()
	s := state{Version: stateVersion, Size: a.f.Size, SHA256: a.f.SHA256, ETag: a.f.ETag, Answer: a.answer, Have: append(spans{}, a.have...)}
	a.mu.Unlock()
	n := s.Have.size()
	if n == a.synced {
		return nil
	}
	if err := a.file.Sync(); err != nil {
		return a.diskError(err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := a.c.o.disk.replace(a.side, b); err != nil {
		return a.diskError(err)
	}
	a.synced = n
	return nil
}

// diskError words what the disk said.
func (a *attempt) diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		a.mu.Lock()
		n := a.have.size()
		a.mu.Unlock()
		return fmt.Errorf("%s: %w: %d of %d bytes are there; a pull goes on from them once there is room for the rest", a.f.Path, ErrSpace, n, a.f.Size)
	}
	return &lastingError{err}
}

// verify compares what is on the disk with the hash.
func (a *attempt) verify(ctx context.Context) error {
	var h hash.Hash
	want := a.f.SHA256
	switch {
	case want != "":
		h = sha256.New()
	case a.f.git:
		h, want = sha1.New(), a.f.ETag
		fmt.Fprintf(h, "blob %d\x00", a.f.Size)
	default:
		a.c.o.Log.Warn("the server gives no SHA-256, only the size was compared", "file", a.f.Path)
		return nil
	}
	a.p.done.Store(0)
	a.p.set(func(x *Progress) { x.Phase = PhaseVerify })
	buf := make([]byte, 1<<20)
	for at := int64(0); at < a.f.Size; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := a.file.ReadAt(buf[:min(int64(len(buf)), a.f.Size-at)], at)
		h.Write(buf[:n])
		at += int64(n)
		a.p.done.Add(int64(n))
		if err != nil && (!errors.Is(err, io.EOF) || at < a.f.Size) {
			return err
		}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%s: %w: its hash is %s, want %s", a.f.Path, ErrDamaged, got, want)
	}
	return nil
}

func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil { // so that names survive a crash; not every system can
		_ = d.Sync()
		d.Close()
	}
}

func (realDisk) open(path string) (diskFile, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
}
