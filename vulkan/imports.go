//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

import (
	"sync"
	"unsafe"

	"terrace/compute"
)

// imports are pieces of the host's memory that the device reads where they lie: on devices that have no other memory. A piece stays
// imported until its pages are given back to the system (Forget).
type imports struct {
	b       *Backend
	mu      sync.Mutex
	adopted [][]byte               // memory that may be imported
	list    map[uintptr]*hostBlock // experts, by first byte
	weights map[*block]struct{}
	refused string // why the driver would not; "": it would
	copied  int64  // experts that were copied instead
}

// hostBlock is a run of pages, and the expert in it.
type hostBlock struct {
	block
	size uintptr
	slot slot
}

const (
	// importMost bounds imports: devices promise 4096 allocations.
	importMost = 3500
	// importAlign is the alignment that shaders want of a matrix.
	importAlign = 16
	// importGap is the most that lies between an expert's pieces in one import.
	importGap = 64 << 10
	// importLeast is the size of a weight that is worth an import.
	importLeast = 64 << 10
)

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Adopt says that memory outside the Go heap may be computed from where it lies, on devices that have no memory of their own. Its
// addresses stay valid for the backend's life; what is given back to the system meanwhile is told by Forget.
func (b *Backend) Adopt(mem []byte) {
	b.imports.mu.Lock()
	defer b.imports.mu.Unlock()
	if len(mem) > 0 {
		b.imports.adopted = append(b.imports.adopted, mem)
	}
}

// run imports the pages from lo to hi of adopted memory.
func (m *imports) run(lo, hi uintptr) (*hostBlock, string) {
	f := &m.b.dev.c.f
	page := uintptr(max(f.import_alignment, 1))
	lo, hi = lo/page*page, (hi+page-1)/page*page
	var first unsafe.Pointer
	for _, a := range m.adopted {
		if at := address(a); at <= lo && at+uintptr(len(a)) >= hi {
			first = unsafe.Pointer(&a[lo-at])
		}
	}
	switch {
	case f.host_import == 0:
		return nil, "the driver has no host import"
	case first == nil:
		return nil, "it lies where nothing may be imported from"
	case len(m.list) >= importMost:
		return nil, "as many pieces are imported as may be"
	}
	h := &hostBlock{size: hi - lo}
	var bits C.uint32_t
	memory, got := m.b.dev.c.memory, C.tv_block{} // by themselves: their addresses go to C
	if r := C.tv_import(m.b.dev.d, first, C.uint64_t(hi-lo), &bits, &memory, &got); r != 0 {
		return nil, result(int(r))
	}
	h.b = got
	return h, ""
}

// expert is where the device finds an expert's matrices in the host's memory; nil: it does not.
func (m *imports) expert(x *compute.Expert) *slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	lo, hi, sum := ^uintptr(0), uintptr(0), uintptr(0)
	for _, d := range [...][]byte{x.Gate.Data, x.Up.Data, x.Down.Data} {
		if len(d) == 0 {
			continue
		}
		at := address(d)
		if at%importAlign != 0 {
			m.copied++
			return nil
		}
		lo, hi, sum = min(lo, at), max(hi, at+uintptr(len(d))), sum+uintptr(len(d))
	}
	h := m.list[lo]
	if h != nil && h.at(hi, lo) {
		return h.place(x, lo)
	}
	if h != nil {
		m.drop(lo, h)
	}
	if hi-lo > sum+3*importGap {
		m.copied++
		return nil
	}
	h, why := m.run(lo, hi)
	if h == nil {
		if m.refused == "" {
			m.refused = why
			m.b.log.Warn("the device does not take the host's memory as its own: experts are copied once", "reason", why)
		}
		m.copied++
		return nil
	}
	m.list[lo] = h
	return h.place(x, lo)
}

// at reports whether the block reaches to hi.
func (h *hostBlock) at(hi, lo uintptr) bool { return lo/4096*4096+h.size >= hi }

// place tells where the matrices of x lie.
func (h *hostBlock) place(x *compute.Expert, lo uintptr) *slot {
	page := lo - lo%4096
	of := func(d []byte) uint64 {
		if len(d) == 0 {
			return 0
		}
		return uint64(h.b.address) + uint64(address(d)-page)
	}
	s := &h.slot
	s.gate, s.up, s.down = of(x.Gate.Data), of(x.Up.Data), of(x.Down.Data)
	return s
}

func (m *imports) drop(lo uintptr, h *hostBlock) {
	delete(m.list, lo)
	m.b.dev.release(&h.b)
}

// weight imports a weight's bytes; false: they have to be copied.
func (m *imports) weight(data []byte) (region, bool) {
	lo := address(data)
	if len(data) < importLeast || lo%importAlign != 0 {
		return region{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, _ := m.run(lo, lo+uintptr(len(data)))
	if h == nil {
		return region{}, false
	}
	h.host = true
	m.weights[&h.block] = struct{}{}
	return region{&h.block, uint64(lo % uintptr(max(m.b.dev.c.f.import_alignment, 1))), uint64(len(data))}, true
}

// Forget tells that pages of the host are given back to the system: nothing is computed from them any more. It may be called from
// any goroutine.
func (b *Backend) Forget(mem []byte) {
	m := &b.imports
	if len(mem) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) == 0 {
		return
	}
	first, last := address(mem), address(mem)+uintptr(len(mem))
	for lo, h := range m.list {
		if lo < last && lo+h.size > first {
			m.drop(lo, h)
		}
	}
}

// gone lets go of a weight.
func (m *imports) gone(b *block) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.weights, b)
	m.b.dev.release(&b.b)
}

func (m *imports) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for b := range m.weights {
		delete(m.weights, b)
		m.b.dev.release(&b.b)
	}
	for lo, h := range m.list {
		m.drop(lo, h)
	}
}
