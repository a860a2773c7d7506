package tiers

import (
	"context"
	"errors"
	"testing"
	"time"
)

// until waits for something that another goroutine is about to do.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it does not come to that", what)
		}
	}
}

// TestWaiting looks at a cache one of whose reads hangs, at one whose lock somebody keeps, and at one that is idle.
func TestWaiting(t *testing.T) {
	hang := make(chan struct{})
	experts := testExperts(4, 8)
	st, err := NewMem(Mem{Fill: func(d *Desc, piece int, dst []byte) error {
		if d.ID == (ExpertID{1, 5}) {
			<-hang
		}
		return fillPiece(d, piece, dst)
	}}, StoreOptions{Depth: 3, GuessDepth: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: st, Experts: experts, Slots: 12, TopK: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	r, err := c.Begin(1, []int32{2, 5})
	if err != nil {
		t.Fatal(err)
	}
	lease, ok, err := r.Next(ctx, true)
	if err != nil || !ok || lease.Expert() != 2 {
		t.Fatal(lease, ok, err)
	}
	got := make(chan error, 1)
	go func() {
		_, ok, err := r.Next(ctx, true)
		if err == nil && !ok {
			err = errors.New("no lease")
		}
		got <- err
	}()
	until(t, "a request waits", func() bool { w, ok := c.Waiting(); return ok && w.Blocked == 1 })
	if n := c.Prefetch(2, []int32{3}); n != 1 {
		t.Fatalf("%d guesses", n)
	}
	until(t, "the hanging read has all workers", func() bool { w, _ := c.Waiting(); return w.Backlog.Flying == 3 })
	w, ok := c.Waiting()
	if !ok || !w.Store || len(w.Without) != 0 {
		t.Fatalf("%+v %v", w, ok)
	}
	if len(w.Reads) != 2 || w.Reads[0].Desc != &experts[1][5] || !w.Reads[0].Began || w.Reads[0].Waiters != 1 || w.Reads[0].For <= 0 {
		t.Errorf("reads %+v, want first expert 5 of layer 1, under way, with one who waits", w.Reads)
	}
	if g := w.Reads[1]; g.Desc != &experts[2][3] || g.Began || g.Waiters != 0 || g.For != 0 {
		t.Errorf("then %+v, want the guess, which has not begun", g)
	}
	if w.Backlog.Guesses != 1 || w.Backlog.Demands != 0 {
		t.Errorf("backlog %+v, want one guess", w.Backlog)
	}
	if len(w.Held) != 1 || w.Held[0] != (LayerWant{1, 1}) {
		t.Errorf("lent %v, want one expert of layer 1", w.Held)
	}
	before := w.Reads[0].For
	if w, _ = c.Waiting(); w.Reads[0].For < before {
		t.Errorf("a read was under way for %v and is now for %v", before, w.Reads[0].For)
	}
	c.mu.Lock()
	if _, ok := c.Waiting(); ok {
		t.Error("the lock is held, and that was not told")
	}
	c.mu.Unlock()
	p := st.(*pool)
	p.mu.Lock()
	if w, ok := c.Waiting(); !ok || w.Store {
		t.Errorf("the queue's lock is held: %v %+v", ok, w)
	}
	p.mu.Unlock()
	close(hang)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	r.Close()
	c.Settle(2, []int32{3})
	until(t, "all is read", func() bool { w, _ := c.Waiting(); return len(w.Reads) == 0 && w.Backlog == Backlog{} })
	if w, ok := c.Waiting(); !ok || w.Blocked != 0 || len(w.Held) != 0 || len(w.Without) != 0 {
		t.Errorf("idle, and %+v %v", w, ok)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWaitingForSlots: a request that got no slots says how many it lacks.
func TestWaitingForSlots(t *testing.T) {
	experts := testExperts(4, 8)
	st, err := NewMem(Mem{Fill: fillPiece}, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: st, Experts: experts, Slots: 6, TopK: 3})
	if err != nil {
		t.Fatal(err)
	}
	var leases []*Request
	for _, l := range []int{1, 2} { // all slots are lent
		r, err := c.Begin(l, []int32{0, 1, 2})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, ok, err := r.Next(context.Background(), true); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		leases = append(leases, r)
	}
	r, err := c.Begin(3, []int32{4, 5, 6})
	if err != nil {
		t.Fatal(err)
	}
	w, ok := c.Waiting()
	if !ok || len(w.Without) != 1 || w.Without[0] != (LayerWant{3, 3}) {
		t.Errorf("%+v %v, want that 3 experts of layer 3 have no slot", w, ok)
	}
	if len(w.Held) != 2 || w.Held[0] != (LayerWant{1, 3}) || w.Held[1] != (LayerWant{2, 3}) {
		t.Errorf("lent %v", w.Held)
	}
	for _, l := range leases {
		l.Close()
	}
	for range 3 {
		if _, ok, err := r.Next(context.Background(), true); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	r.Close()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}
