//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"terrace/compute"
)

// track remembers when an object was last read and written, in numbers of barriers; of a view: whose track counts.
type track struct {
	read, wrote uint64
	of          *track
}

func (t *track) root() *track {
	if t.of != nil {
		return t.of
	}
	return t
}

// encoder implements compute.Encoder. Operations become words of a list, which is recorded and submitted in one call.
type encoder struct {
	b       *Backend
	list    []uint32
	epoch   uint64 // number of the last barrier
	ins     []*track
	outs    []*track
	at      int  // where the dispatch being written begins
	skip    bool // it is not to be run: err is set
	up      ring
	down    ring
	reads   []pending
	dones   []compute.Done
	bin     bin
	kept    []*store // in use by what was recorded
	flying  bool     // something was submitted and not waited for
	err     error    // the first since the last Submit
	stats   Stats
	tiled   int // products and attentions of many rows that went in tiles, for tests
	waiting waiting
	experts expertQueue
	scratch scratch
	guest   guest
	routes  map[uint64]*route
}

var _ compute.Encoder = (*encoder)(nil)

// pending is a Read that waits for Submit.
type pending struct {
	dst, src []byte
}

// bin collects memory that was let go of, by finalizers too, until nothing that runs can use it.
type bin struct {
	mu  sync.Mutex
	mem []region
	err error // of copies beside the encoder
}

func (b *bin) drop(parts *[]part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range *parts {
		if p.r.b != nil {
			b.mem = append(b.mem, p.r)
		}
	}
}

func (b *bin) drop1(r region) {
	if r.b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mem = append(b.mem, r)
	}
}

func (e *encoder) init(b *Backend, write, read uint32, staging int) error {
	e.b, e.epoch = b, 1
	e.up, e.down = ring{d: b.dev, typ: write}, ring{d: b.dev, typ: read}
	if err := e.up.grow(staging); err != nil {
		return err
	}
	return e.down.grow(1 << 20)
}

func (e *encoder) close() {
	e.up.close()
	e.down.close()
}

// store takes device memory; where it is refused it answers nil, and the next Submit fails.
func (e *encoder) store(n uint64) *store {
	r, err := e.b.mem.take(n)
	if err != nil {
		// Perhaps what nobody uses any more makes room; else experts do.
		if serr := e.settle(); serr == nil {
			for wait := time.Millisecond; err != nil && wait < 100*time.Millisecond; wait *= 4 {
				runtime.GC()
				time.Sleep(wait) // what is found dead is handed over by another goroutine
				e.empty()
				r, err = e.b.mem.take(n)
			}
			if err != nil {
				r, err = e.b.take(n)
			}
		}
	}
	if err != nil {
		e.fail(err)
		return nil
	}
	s := &store{r}
	runtime.AddCleanup(s, e.bin.drop1, r)
	return s
}

// keep holds on to memory until what is recorded has run.
func (e *encoder) keep(s *store) {
	if s.b != nil {
		e.kept = append(e.kept, s)
	}
}

// fail remembers the first error; what is recorded after it does not run.
func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// report is fail for other goroutines: Submit will tell.
func (e *encoder) report(err error) {
	e.bin.mu.Lock()
	defer e.bin.mu.Unlock()
	if e.bin.err == nil {
		e.bin.err = err
	}
}

// take answers the error so far and forgets it.
func (e *encoder) take() error {
	err := e.err
	e.err = nil
	return err
}

// in says what the next command reads, out what it writes.
func (e *encoder) in(t ...*track) {
	for _, x := range t {
		e.ins = append(e.ins, x.root())
	}
}

func (e *encoder) out(t ...*track) {
	for _, x := range t {
		e.outs = append(e.outs, x.root())
	}
}

// order puts a barrier before a command that reads or writes what one since the last barrier wrote, or writes what one read.
func (e *encoder) order() {
	hit := false
	for _, t := range e.ins {
		hit = hit || t.wrote == e.epoch
	}
	for _, t := range e.outs {
		hit = hit || t.wrote == e.epoch || t.read == e.epoch
	}
	if hit {
		e.list = append(e.list, C.TV_BARRIER)
		e.epoch++
		e.stats.Barriers++
	}
	for _, t := range e.ins {
		t.read = e.epoch
	}
	for _, t := range e.outs {
		t.wrote = e.epoch
	}
	e.ins, e.outs = e.ins[:0], e.outs[:0]
}

// begin starts a dispatch of a shader with specialisation constants; u64, u32 and f32 add its constants, dispatch ends it.
func (e *encoder) begin(s shader, c [4]uint32) {
	if e.err == nil {
		e.order()
	} else {
		e.ins, e.outs = e.ins[:0], e.outs[:0]
	}
	p, err := e.b.pipe.get(s, c)
	if err != nil {
		e.fail(err)
	}
	e.skip = e.err != nil
	e.at = len(e.list)
	e.list = append(e.list, C.TV_DISPATCH, uint32(p), uint32(p>>32), 0, 0, 0, 0)
}

func (e *encoder) u64(v ...uint64) {
	for _, x := range v {
		e.list = append(e.list, uint32(x), uint32(x>>32))
	}
}

func (e *encoder) u32(v ...uint32) { e.list = append(e.list, v...) }
func (e *encoder) f32(v float32)   { e.list = append(e.list, math.Float32bits(v)) }

// dispatch runs so many workgroups; none: nothing.
func (e *encoder) dispatch(x, y, z int) {
	l := e.list[e.at:]
	n := len(l) - 7
	if n > pushBytes/4 {
		panic(fmt.Sprintf("vulkan: %d bytes of constants", 4*n))
	}
	if e.skip || x == 0 || y == 0 || z == 0 {
		e.list = e.list[:e.at]
		return
	}
	l[3], l[4], l[5], l[6] = uint32(x), uint32(y), uint32(z), uint32(n)
	e.stats.Dispatches++
}

// across cuts n workgroups into two dimensions, none of which is too large for any device.
func across(n int) (x, y int) {
	const most = 32768
	if n <= most {
		return n, min(n, 1)
	}
	return most, (n + most - 1) / most
}

func groups(n, size int) int { return (n + size - 1) / size }

// copy copies device memory. The caller has said what is read and written.
func (e *encoder) copy(to region, at uint64, from region, off, n uint64) {
	e.order()
	if e.err != nil || n == 0 {
		return
	}
	e.list = append(e.list, C.TV_COPY)
	e.u64(from.buffer(), to.buffer(), from.at+off, to.at+at, n)
}

// fill sets n bytes, a multiple of 4, to the word v.
func (e *encoder) fill(to region, at, n uint64, v uint32) {
	e.order()
	if e.err != nil || n == 0 {
		return
	}
	e.list = append(e.list, C.TV_FILL)
	e.u64(to.buffer(), to.at+at, n)
	e.list = append(e.list, v)
}

// reserve makes sure that n bytes in k pieces can be taken from the upload ring. It may run everything recorded.
func (e *encoder) reserve(n, k int) {
	if e.up.fits(n, k) {
		return
	}
	if err := e.settle(); err != nil {
		e.fail(err)
	}
	if !e.up.fits(n, k) {
		if err := e.up.grow(n + k*ringAlign); err != nil {
			e.fail(err)
		}
	}
}

// room is n reserved bytes of the upload ring, and where the device sees them.
func (e *encoder) room(n int) ([]byte, uint64) {
	if e.err != nil && !e.up.fits(n, 1) {
		return make([]byte, max(n, 4)), 0 // nothing runs any more
	}
	return e.up.take(n)
}

// numbers puts 32-bit values into the ring; they have been reserved.
func numbers[T int32 | uint32 | float32 | uint64](e *encoder, x []T) uint64 {
	if len(x) == 0 {
		return 0
	}
	n := len(x) * int(unsafe.Sizeof(x[0]))
	b, addr := e.room(n)
	copy(b, unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), n))
	return addr
}

// piece bounds what goes through the ring at a time.
func (e *encoder) piece() int { return len(e.up.mem) / 2 &^ 3 }

// upload copies host bytes to device memory, which by follows.
func (e *encoder) upload(to region, at uint64, b []byte, by *track) {
	e.stats.Uploaded += int64(len(b))
	for len(b) > 0 {
		n := min(len(b), e.piece())
		e.reserve(n+4, 1)
		m, addr := e.room((n + 3) &^ 3)
		copy(m, b[:n])
		e.out(by)
		e.order()
		if e.err == nil {
			e.list = append(e.list, C.TV_COPY)
			e.u64(uint64(e.up.b.buffer), to.buffer(), addr-uint64(e.up.b.address), to.at+at, uint64(n+3)&^3)
		}
		b, at = b[n:], at+uint64(n)
	}
}

// write is upload to a tensor.
func (e *encoder) write(t *tensor, b []byte) {
	e.drain()
	t.touch()
	e.upload(t.region(), 0, b, &t.track)
}

// Read implements compute.Encoder.
func (e *encoder) Read(dst []float32, x compute.Tensor) {
	t := own(x)
	if len(dst) != t.rows*t.cols {
		panic(fmt.Sprintf("vulkan: Read of %d x %d elements into %d", t.rows, t.cols, len(dst)))
	}
	e.drain()
	e.in(&t.track)
	e.fetch(dst, t.region())
}

// fetch copies the beginning of a region to dst; it is there after Submit or settle.
func (e *encoder) fetch(dst []float32, from region) {
	if len(dst) == 0 {
		e.ins = e.ins[:0]
		return
	}
	e.fetchBytes(unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 4*len(dst)), from)
}

func (e *encoder) fetchBytes(dst []byte, from region) {
	n := len(dst)
	if n == 0 || e.err != nil {
		e.ins = e.ins[:0]
		return
	}
	if !e.down.fits(n, 1) {
		held := append([]*track(nil), e.ins...)
		e.ins = e.ins[:0]
		if !e.landing(n) {
			return
		}
		e.in(held...)
	}
	b, addr := e.down.take(n)
	e.order()
	e.list = append(e.list, C.TV_COPY)
	e.u64(from.buffer(), uint64(e.down.b.buffer), from.at, addr-uint64(e.down.b.address), uint64(n))
	e.reads = append(e.reads, pending{dst, b})
}

// landing makes room for n bytes that come to the host. It may run everything recorded; false: it failed.
func (e *encoder) landing(n int) bool {
	if e.down.fits(n, 1) {
		return true
	}
	err := e.settle()
	if err == nil && !e.down.fits(n, 1) {
		err = e.down.grow(n + ringAlign)
	}
	if err != nil {
		e.fail(err)
	}
	return err == nil
}

// drain records what waits for company.
func (e *encoder) drain() {
	e.waiting.run(e)
	e.experts.run(e)
}

// Flush implements compute.Encoder.
func (e *encoder) Flush() {
	e.drain()
	if err := e.send(); err != nil {
		e.fail(err)
	}
}

// send submits what is recorded.
func (e *encoder) send() error {
	if len(e.list) == 0 {
		return nil
	}
	host := 0
	if len(e.reads) > 0 {
		host = 1
	}
	r := e.b.dev.submit(e.b.dev.d, e.list, host)
	e.list = e.list[:0]
	e.epoch++ // a submission begins with a barrier
	e.stats.Submits++
	e.flying = true
	if err := e.b.dev.check("submission", r); err != nil {
		if e.guest.held { // its part is done all the same: it knows nothing of devices
			e.guest.held = false
			e.guest.fill()
		}
		return err
	}
	return e.serve()
}

// settle runs everything recorded, waits for it and empties the rings.
func (e *encoder) settle() error {
	e.drain()
	err := e.send()
	if e.flying {
		werr := e.b.dev.check("waiting", e.b.dev.wait(e.b.dev.d))
		if err == nil {
			err = werr
		}
		e.flying = false
		e.stats.Waits++
	}
	for i := range e.reads {
		p := &e.reads[i]
		if err == nil {
			copy(p.dst, p.src)
		}
		*p = pending{}
	}
	e.reads = e.reads[:0]
	e.up.used, e.down.used = 0, 0
	clear(e.kept)
	e.kept = e.kept[:0]
	e.empty()
	return err
}

// empty gives back what lies in the bin. Nothing runs.
func (e *encoder) empty() {
	e.bin.mu.Lock()
	defer e.bin.mu.Unlock()
	if len(e.list) > 0 || e.flying {
		return
	}
	for _, r := range e.bin.mem {
		e.b.mem.give(r)
	}
	e.bin.mem = e.bin.mem[:0]
}

// OnDone implements compute.Encoder.
func (e *encoder) OnDone(d compute.Done) { e.dones = append(e.dones, d) }

// Submit implements compute.Encoder. After an error nothing that was recorded since the last Submit counts.
func (e *encoder) Submit() error {
	if err := e.settle(); err != nil {
		e.fail(err)
	}
	e.bin.mu.Lock()
	if e.bin.err != nil {
		e.fail(e.bin.err)
		e.bin.err = nil
	}
	e.bin.mu.Unlock()
	for i, d := range e.dones {
		d.Done()
		e.dones[i] = nil
	}
	e.dones = e.dones[:0]
	return e.take()
}
