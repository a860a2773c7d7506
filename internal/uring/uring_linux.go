package uring

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is an io_uring. Any goroutine may read and flush; one goroutine waits while anything is under way and picks up what is
// done. Poll lets others pick up too.
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
	slots  slotTable
	file   *os.File // fd, known to the runtime's poller
	conn   syscall.RawConn
	flying atomic.Int64 // reads queued and not yet picked up
	done   chan struct{}
}

// Open makes a ring and checks that the kernel knows how to read with it.
func Open(o Options) (*Ring, error) {
	if o.Entries < 1 || o.Entries > 4096 || o.Complete == nil {
		panic(fmt.Sprintf("uring: %d entries; it must be 1 to 4096, with somebody to complete", o.Entries))
	}
	var p params
	entries := 1
	for entries < o.Entries {
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
	for _, op := range []int{opReadFixed, opRead} {
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
	r.openSlots()
	if err := unix.SetNonblock(r.fd, true); err != nil { // of no meaning to the ring; it asks the runtime to poll it
		return fmt.Errorf("%w: the ring's descriptor: %w", ErrUnavailable, err)
	}
	r.file = os.NewFile(uintptr(r.fd), "io_uring")
	if err := r.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("%w: the ring cannot be polled: %w", ErrUnavailable, err)
	}
	if r.conn, err = r.file.SyscallConn(); err != nil {
		return fmt.Errorf("%w: the ring cannot be polled: %w", ErrUnavailable, err)
	}
	return nil
}

// Read queues a read of len(b) bytes at off of file number file; Flush hands it to the kernel. b lies in the attached slot
// with the given number, or anywhere outside the Go heap, and must stay untouched until tag is completed. No more than
// Entries reads may be under way. It says whether the kernel knew the memory.
func (r *Ring) Read(file int, off int64, b []byte, slot int, tag uint64) (registered bool) {
	if len(b) == 0 {
		panic("uring: read of no bytes")
	}
	e := sqe{opcode: opRead, fd: r.files[file], off: uint64(off), addr: uint64(uintptr(unsafe.Pointer(&b[0]))), len: uint32(len(b)), userData: tag}
	if r.fixedFiles {
		e.flags = sqeFixedFile
	}
	if place := r.registered(slot, b); place >= 0 {
		e.opcode, e.bufIndex, registered = opReadFixed, uint16(place), true
	}
	r.sq.Lock()
	defer r.sq.Unlock()
	if r.sq.closing {
		panic("uring: read from a closed ring")
	}
	r.push(e)
	return registered
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
		r.complete(tag, res)
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
			r.complete(c.userData, c.res)
			found = true
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

// reap is the goroutine that waits for completions, in the runtime's poller like one that waits for a socket: sleeping in
// the kernel itself would keep a thread and the runtime's monitor busy with it.
func (r *Ring) reap() {
	defer close(r.done)
	ready := func(uintptr) bool { return atomic.LoadUint32(r.cq.head) != atomic.LoadUint32(r.cq.tail) }
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
		if err := r.conn.Read(ready); err != nil {
			// Close woke us, or waiting is impossible; what is under way still completes, so look for it now and then.
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
	r.sq.Signal()
	r.sq.Unlock()
	// Poll may have picked up the last read while the reaper waits: this wakes it.
	_ = r.file.SetReadDeadline(time.Unix(1, 0)) // it was possible in open
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
	if r.file != nil {
		return errors.Join(err, r.file.Close())
	}
	return errors.Join(err, unix.Close(r.fd))
}
