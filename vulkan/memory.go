//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

import (
	"fmt"
	"sort"
	"sync/atomic"
	"unsafe"
)

// block is an allocation of device memory under one buffer, cut into regions.
type block struct {
	b    C.tv_block
	size uint64
	free []span // by offset; neighbours are joined
	used int    // regions
	host bool   // it is the host's memory, all of it one region
}

// span is a range of a block.
type span struct{ at, size uint64 }

// region is a piece of a block.
type region struct {
	b        *block
	at, size uint64
}

func (r *region) addr() uint64 {
	if r.b == nil {
		return 0
	}
	return uint64(r.b.b.address) + r.at
}

func (r *region) buffer() uint64 { return uint64(r.b.b.buffer) }

// heap hands out memory of one type.
type heap struct {
	d      *device
	typ    uint32
	blocks []*block
	held   uint64 // bytes of all blocks
	limit  uint64 // most bytes; 0: none
	most   uint64 // of an allocation

	gone   func(*block)  // a block of the host's memory is let go of
	beside func() uint64 // bytes that count against the limit as well; nil: none
	total  atomic.Int64  // held, for those who ask from elsewhere
}

const (
	align        = 256
	firstBlock   = 16 << 20
	largestBlock = 256 << 20
)

// take finds a region of n bytes, in a new block where the others have none.
func (h *heap) take(n uint64) (region, error) {
	n = max((n+align-1)&^(align-1), align)
	if n > h.most {
		return region{}, fmt.Errorf("vulkan: %d bytes in one piece, the device gives %d at most", n, h.most)
	}
	for _, b := range h.blocks {
		if r, ok := b.cut(n); ok {
			return r, nil
		}
	}
	size := uint64(firstBlock)
	for size < largestBlock && size < h.held/2 {
		size *= 2
	}
	size = min(max(size, n), h.most)
	other := uint64(0)
	if h.beside != nil {
		other = h.beside()
	}
	if h.limit > 0 && h.held+other+size > h.limit {
		size = n // the last ones are as small as can be
		if h.held+other+n > h.limit {
			return region{}, fmt.Errorf("vulkan: %d bytes more than the %d in use would be over the limit of %d", n, h.held+other, h.limit)
		}
	}
	b := &block{}
	r := h.d.allocate(size, h.typ, 0, &b.b)
	if r != 0 && size > n {
		size = n
		r = h.d.allocate(size, h.typ, 0, &b.b)
	}
	if r != 0 {
		return region{}, h.d.check(fmt.Sprintf("%d bytes of device memory beside %d in use", n, h.held), r)
	}
	b.size, b.free = size, []span{{0, size}}
	h.blocks, h.held = append(h.blocks, b), h.held+size
	h.total.Store(int64(h.held))
	got, _ := b.cut(n)
	return got, nil
}

// cut takes n bytes from the first free span that has them.
func (b *block) cut(n uint64) (region, bool) {
	for i := range b.free {
		s := &b.free[i]
		if s.size < n {
			continue
		}
		r := region{b, s.at, n}
		s.at, s.size = s.at+n, s.size-n
		if s.size == 0 {
			b.free = append(b.free[:i], b.free[i+1:]...)
		}
		b.used++
		return r, true
	}
	return region{}, false
}

// put takes a region back.
func (b *block) put(r region) {
	i := sort.Search(len(b.free), func(i int) bool { return b.free[i].at > r.at })
	b.free = append(b.free, span{})
	copy(b.free[i+1:], b.free[i:])
	b.free[i] = span{r.at, r.size}
	if i+1 < len(b.free) && b.free[i].at+b.free[i].size == b.free[i+1].at {
		b.free[i].size += b.free[i+1].size
		b.free = append(b.free[:i+1], b.free[i+2:]...)
	}
	if i > 0 && b.free[i-1].at+b.free[i-1].size == b.free[i].at {
		b.free[i-1].size += b.free[i].size
		b.free = append(b.free[:i], b.free[i+1:]...)
	}
	b.used--
}

// give takes a region back, and with the last one the block.
func (h *heap) give(r region) {
	b := r.b
	if b.host {
		h.gone(b)
		return
	}
	b.put(r)
	if b.used > 0 || len(h.blocks) == 1 {
		return
	}
	for k, x := range h.blocks {
		if x == b {
			h.blocks = append(h.blocks[:k], h.blocks[k+1:]...)
			break
		}
	}
	h.held -= b.size
	h.total.Store(int64(h.held))
	h.d.release(&b.b)
}

func (h *heap) close() {
	for _, b := range h.blocks {
		h.d.release(&b.b)
	}
	h.blocks, h.held = nil, 0
}

// ring is host memory that the device sees, filled from its beginning until it is known that all of it has been used.
type ring struct {
	d    *device
	typ  uint32
	b    C.tv_block
	mem  []byte
	used int
}

// grow makes room for n bytes at least. Nothing may be in use.
func (r *ring) grow(n int) error {
	n = (n + 1<<20 - 1) &^ (1<<20 - 1)
	var b C.tv_block
	if x := r.d.allocate(uint64(n), r.typ, 1, &b); x != 0 {
		return r.d.check(fmt.Sprintf("%d bytes of host memory", n), x)
	}
	r.close()
	r.b, r.mem = b, unsafe.Slice((*byte)(b.mapped), n)
	return nil
}

func (r *ring) close() {
	if r.mem != nil {
		r.d.release(&r.b)
		r.mem = nil
	}
	r.used = 0
}

// ringAlign is the alignment of what lies in a ring.
const ringAlign = 64

// fits reports whether n bytes in k pieces have room.
func (r *ring) fits(n, k int) bool { return r.used+n+k*ringAlign <= len(r.mem) }

// take is n bytes of the ring; it fits.
func (r *ring) take(n int) (b []byte, addr uint64) {
	at := (r.used + ringAlign - 1) &^ (ringAlign - 1)
	r.used = at + n
	return r.mem[at : at+n : at+n], uint64(r.b.address) + uint64(at)
}

// wideWindow is the size from which memory that both see is more than the small window that every device has.
const wideWindow = 1 << 30

// memoryTypes picks types for the memory of the device, for what the host writes, and for what it reads.
func (c *candidate) memoryTypes() (fast, write, read uint32, err error) {
	pick := func(score func(t *C.tv_type) int) (best uint32, ok bool) {
		top := 0
		for i := range c.memory.types {
			if s := score(&c.memory._type[i]); s > top {
				best, top, ok = uint32(i), s, true
			}
		}
		return best, ok
	}
	flag := func(b C.uint32_t, n int) int {
		if b != 0 {
			return n
		}
		return 0
	}
	fast, ok := pick(func(t *C.tv_type) int {
		return flag(t.device_local, 8) + flag(t.device_local&(1-t.host_visible), 1)
	})
	if !ok {
		if fast, ok = pick(func(t *C.tv_type) int { return flag(t.host_visible, 1) }); !ok {
			return 0, 0, 0, fmt.Errorf("vulkan: %s has no memory of use", c.info.Name)
		}
	}
	write, ok = pick(func(t *C.tv_type) int {
		if t.host_visible == 0 || t.coherent == 0 {
			return 0
		}
		// The device's own memory, where the host sees all of it: what lies elsewhere costs each group of threads a trip.
		near := t.device_local != 0 && c.memory.heap[t.heap].size >= wideWindow
		return 1 + flag(1-t.device_local, 2) + flag(1-t.cached, 1) + flag(C.uint32_t(map[bool]int{true: 1}[near]), 8)
	})
	if !ok {
		return 0, 0, 0, fmt.Errorf("vulkan: %s has no memory that the host may write", c.info.Name)
	}
	read, _ = pick(func(t *C.tv_type) int {
		if t.host_visible == 0 || t.coherent == 0 {
			return 0
		}
		return 1 + flag(t.cached, 4) + flag(1-t.device_local, 2)
	})
	return fast, write, read, nil
}
