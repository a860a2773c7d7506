package uring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is an io_uring. Any goroutine may read and flush; one goroutine, locked to its thread, sleeps in the kernel while
// anything is under way and picks up what is done. Poll lets others pick up too.
//
// Memory shared with the kernel: we own the tail of the submission ring and the head of the completion ring, the kernel
// the other two. An entry is written before its tail is stored and read after the tail was loaded; Go's atomics order at
// least that much.
type Ring struct {
	fd         int
	complete   func(tag uint64, n int32)
	batch      func()
	files      []int32 // descriptors, or indices when they are registered
	keep       []*os.File
	fixedFiles bool
	noRegister bool
	buffers    int // registered ones

	ring, sqeMem []byte // mappings

	sq struct {
		sync.Mutex
		sync.Cond            // something is under way, or closing
		head, tail   *uint32 // shared
		mask         uint32
		entries      []sqe
		array        []uint32
		next         uint32 // our tail: entries before it are filled in
		queued       uint32 // filled in and not yet taken by the kernel
		closing      bool
		closed       bool
		reaperParked bool
	}
	cq struct {
		sync.Mutex
		head, tail *uint32 // shared
		mask       uint32
		entries    []cqe
		gone       bool // unmapped
	}
	flying atomic.Int64 // reads queued and not yet picked up
	done   chan struct{}
}

// wakeTag is the tag of the request that only wakes the reaper.
const wakeTag = ^uint64(0)

// noBuffer is the buffer number of memory that is not registered.
const noBuffer = -1

// Open makes a ring and checks that the kernel knows how to read with it.
func Open(o Options) (*Ring, error) {
	if o.Entries < 1 || o.Entries > 4096 || o.Complete == nil {
		panic(fmt.Sprintf("uring: %d entries; it must be 1 to 4096, with somebody to complete", o.Entries))
	}
	var p params
	entries := 1
	for entries < o.Entries+1 { // one more, for the request that wakes the reaper
		entries *= 2
	}
	fd, _, errno := unix.Syscall(sysSetup, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("%w: io_uring_setup: %w", ErrUnavailable, errno)
	}
	r := &Ring{fd: int(fd), complete: o.Complete, batch: o.Batch, noRegister: o.NoRegister, done: make(chan struct{})}
	r.sq.L = &r.sq.Mutex
	if err := r.open(&p, o.Files); err != nil {
		r.unmap()
		return nil, err
	}
	go r.reap()
	return r, nil
}

func (r *Ring) open(p *params, files []*os.File) error {
	if p.features&featSingleMmap == 0 || p.features&featNoDrop == 0 {
		return fmt.Errorf("%w: the kernel is too old (features %#x)", ErrUnavailable, p.features)
	}
	var pr probe
	if _, _, errno := unix.Syscall6(sysRegister, uintptr(r.fd), registerProbe, uintptr(unsafe.Pointer(&pr)), uintptr(len(pr.ops)), 0, 0); errno != 0 {
		return fmt.Errorf("%w: the kernel is too old to be asked for operations: %w", ErrUnavailable, errno)
	}
	for _, op := range []int{opNop, opReadFixed, opRead} {
		if pr.ops[op].flags&probeSupported == 0 {
			return fmt.Errorf("%w: the kernel lacks operation %d", ErrUnavailable, op)
		}
	}
	size := max(int(p.sq.array)+int(p.sqEntries)*4, int(p.cq.cqes)+int(p.cqEntries)*int(unsafe.Sizeof(cqe{})))
	var err error
	if r.ring, err = unix.Mmap(r.fd, offSQRing, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return fmt.Errorf("%w: map the rings: %w", ErrUnavailable, err)
	}
	if r.sqeMem, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return fmt.Errorf("%w: map the submission entries: %w", ErrUnavailable, err)
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.ring[off])) }
	r.sq.head, r.sq.tail, r.sq.mask = at(p.sq.head), at(p.sq.tail), *at(p.sq.mask)
	r.sq.array = unsafe.Slice(at(p.sq.array), p.sqEntries)
	r.sq.entries = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqeMem[0])), p.sqEntries)
	r.cq.head, r.cq.tail, r.cq.mask = at(p.cq.head), at(p.cq.tail), *at(p.cq.mask)
	r.cq.entries = unsafe.Slice((*cqe)(unsafe.Pointer(&r.ring[p.cq.cqes])), p.cqEntries)
	for i := range r.sq.array {
		r.sq.array[i] = uint32(i)
	}
	r.sq.next = atomic.LoadUint32(r.sq.tail)

	r.keep = files
	for _, f := range files {
		r.files = append(r.files, int32(f.Fd()))
	}
	if len(files) > 0 && !r.noRegister {
		_, _, errno := unix.Syscall6(sysRegister, uintptr(r.fd), registerFiles, uintptr(unsafe.Pointer(&r.files[0])), uintptr(len(r.files)), 0, 0)
		if errno == 0 { // else plain descriptors do
			r.fixedFiles = true
			for i := range r.files {
				r.files[i] = int32(i)
			}
		}
	}
	return nil
}

// RegisteredFiles says whether reads name files by registered index, which saves the kernel a look-up each.
func (r *Ring) RegisteredFiles() bool { return r.fixedFiles }

// maxBuffer is the most bytes that one registered buffer may have.
const maxBuffer = 1 << 30

// RegisterBuffers lets the kernel pin memory once instead of in each read. Each buffer has at most 1 GiB and must lie
// outside the Go heap and stay until Close. It fails where the system does not allow so much pinned memory; reads work
// all the same, without buffer numbers. To be called once, before the first Read.
func (r *Ring) RegisterBuffers(bufs [][]byte) error {
	if r.buffers > 0 {
		panic("uring: buffers registered twice")
	}
	if r.noRegister {
		return fmt.Errorf("register buffers: %w", unix.EPERM)
	}
	vec := make([]unix.Iovec, len(bufs))
	for i, b := range bufs {
		if len(b) == 0 || len(b) > maxBuffer {
			return fmt.Errorf("register buffers: number %d has %d bytes, not 1 to %d", i, len(b), maxBuffer)
		}
		vec[i].Base = &b[0]
		vec[i].SetLen(len(b))
	}
	if len(vec) == 0 {
		return nil
	}
	_, _, errno := unix.Syscall6(sysRegister, uintptr(r.fd), registerBuffers, uintptr(unsafe.Pointer(&vec[0])), uintptr(len(vec)), 0, 0)
	runtime.KeepAlive(vec)
	if errno != 0 {
		return fmt.Errorf("register buffers: %w", errno)
	}
	r.buffers = len(bufs)
	return nil
}

// Read queues a read of len(b) bytes at off of file number file; Flush hands it to the kernel. b lies in the registered
// buffer with the given number, or anywhere outside the Go heap with number -1, and must stay untouched until tag is
// completed. No more than Entries reads may be under way.
func (r *Ring) Read(file int, off int64, b []byte, buffer int, tag uint64) {
	if buffer >= r.buffers || len(b) == 0 || tag == wakeTag {
		panic(fmt.Sprintf("uring: read of %d bytes into buffer %d of %d with tag %#x", len(b), buffer, r.buffers, tag))
	}
	e := sqe{opcode: opRead, fd: r.files[file], off: uint64(off), addr: uint64(uintptr(unsafe.Pointer(&b[0]))), len: uint32(len(b)), userData: tag}
	if r.fixedFiles {
		e.flags = sqeFixedFile
	}
	if buffer >= 0 {
		e.opcode, e.bufIndex = opReadFixed, uint16(buffer)
	}
	r.sq.Lock()
	defer r.sq.Unlock()
	if r.sq.closing {
		panic("uring: read from a closed ring")
	}
	r.push(e)
}

// push fills in the next entry; with the submission lock.
func (r *Ring) push(e sqe) {
	if r.sq.next-atomic.LoadUint32(r.sq.head) > r.sq.mask {
		panic("uring: more reads under way than the ring has entries")
	}
	r.sq.entries[r.sq.next&r.sq.mask] = e
	r.sq.next++
	r.sq.queued++
	r.flying.Add(1)
}

// patience is how long Flush tries again when the kernel is short of memory.
const patience = 2 * time.Second

// Flush hands the queued reads to the kernel. If the kernel refuses them for good, they are completed with its error.
func (r *Ring) Flush() {
	r.sq.Lock()
	var refused []uint64
	var since time.Time
	var res int32
	for r.sq.queued > 0 {
		atomic.StoreUint32(r.sq.tail, r.sq.next)
		n, _, errno := unix.Syscall6(sysEnter, uintptr(r.fd), uintptr(r.sq.queued), 0, 0, 0, 0)
		if errno == 0 {
			r.sq.queued -= uint32(n)
			if n > 0 {
				continue
			}
			errno = unix.EAGAIN
		}
		if errno == unix.EINTR {
			continue
		}
		if errno == unix.EAGAIN || errno == unix.EBUSY {
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) < patience {
				r.sq.Unlock()
				r.Poll()
				time.Sleep(time.Millisecond)
				r.sq.Lock()
				continue
			}
		}
		// Nobody else looks at the ring's tail between two calls, so what was not taken can be taken back.
		res = -int32(errno)
		for ; r.sq.queued > 0; r.sq.queued-- {
			r.sq.next--
			refused = append(refused, r.sq.entries[r.sq.next&r.sq.mask].userData)
		}
		atomic.StoreUint32(r.sq.tail, r.sq.next)
	}
	if r.sq.reaperParked && r.flying.Load() > 0 {
		r.sq.Signal()
	}
	r.sq.Unlock()
	for _, tag := range refused {
		r.flying.Add(-1)
		if tag != wakeTag {
			r.complete(tag, res)
		}
	}
}

// Poll picks up what is done, without a system call, unless somebody else is doing so.
func (r *Ring) Poll() {
	if r.flying.Load() > 0 && r.cq.TryLock() {
		r.pick()
	}
}

// pick picks up what is done and gives the completion lock back.
func (r *Ring) pick() {
	found := false
	for {
		if r.cq.gone {
			r.cq.Unlock()
			return
		}
		var got [16]cqe
		n := 0
		head, tail := atomic.LoadUint32(r.cq.head), atomic.LoadUint32(r.cq.tail)
		for ; n < len(got) && head != tail; n++ {
			got[n] = r.cq.entries[head&r.cq.mask]
			head++
		}
		atomic.StoreUint32(r.cq.head, head)
		r.cq.Unlock()
		// What was written before Read must be seen by Complete. The kernel stands between the two, so the order is said
		// again in Go's terms: push added to this number.
		r.flying.Load()
		for _, c := range got[:n] {
			if c.userData != wakeTag {
				r.complete(c.userData, c.res)
				found = true
			}
			r.flying.Add(-1)
		}
		if n < len(got) {
			if found && r.batch != nil {
				r.batch()
			}
			return
		}
		r.cq.Lock()
	}
}

// reap is the goroutine that waits in the kernel. It stays on its thread so that the thread's wait is not started anew
// on another at each turn.
func (r *Ring) reap() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.done)
	for {
		r.sq.Lock()
		for r.flying.Load() == 0 && !r.sq.closed {
			r.sq.reaperParked = true
			r.sq.Wait()
			r.sq.reaperParked = false
		}
		over := r.sq.closed && r.flying.Load() == 0
		r.sq.Unlock()
		if over {
			return
		}
		_, _, errno := unix.Syscall6(sysEnter, uintptr(r.fd), 0, 1, enterGetEvents, 0, 0)
		if errno != 0 && errno != unix.EINTR && errno != unix.EAGAIN && errno != unix.EBUSY {
			// Waiting is impossible; what is under way still completes, so look for it now and then.
			time.Sleep(time.Millisecond)
		}
		r.cq.Lock()
		r.pick()
	}
}

// Close waits until nothing is under way and gives the ring back. Reads must not be queued any more.
func (r *Ring) Close() error {
	r.sq.Lock()
	if r.sq.closing {
		r.sq.Unlock()
		return nil
	}
	r.sq.closing = true
	r.sq.Unlock()
	r.Flush()
	r.sq.Lock()
	r.sq.closed = true
	// Poll may have picked up the last read while the reaper sleeps in the kernel: this wakes it.
	r.push(sqe{opcode: opNop, fd: -1, userData: wakeTag})
	r.sq.Signal()
	r.sq.Unlock()
	r.Flush()
	<-r.done
	return r.unmap()
}

// unmap gives back the mappings and the descriptor.
func (r *Ring) unmap() error {
	r.cq.Lock()
	defer r.cq.Unlock()
	r.cq.gone = true
	var err error
	if r.ring != nil {
		err = errors.Join(err, unix.Munmap(r.ring))
	}
	if r.sqeMem != nil {
		err = errors.Join(err, unix.Munmap(r.sqeMem))
	}
	r.keep = nil
	return errors.Join(err, unix.Close(r.fd))
}
