package uring

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slotTable is the memory that the kernel knows, or is to know when something is read into it. Slots may have any numbers;
// those that are attached get one of the kernel's places each, as long as there are any.
type slotTable struct {
	sync.Mutex
	table   error // why the kernel has no table of memory, nil when it has
	slots   []slotMemory
	places  int     // given out at least once
	free    []int32 // of these, those that came back
	full    bool    // the kernel refused to pin more; forgetting some may help
	refused error   // why, the first time
	vec     unix.Iovec
}

// slotMemory is what is attached to one slot.
type slotMemory struct {
	mem   []byte // nil: nothing
	place int32  // in the kernel's table, -1 without one
	there bool   // the kernel knows the memory
}

// openSlots makes an empty table in the kernel (since Linux 5.19); reads do without.
func (r *Ring) openSlots() {
	if r.noRegister {
		r.slots.table = unix.EPERM
		return
	}
	t := rsrcRegister{nr: Slots, flags: rsrcSparse}
	_, _, errno := unix.Syscall6(sysRegister, uintptr(r.fd), registerBuffers2, uintptr(unsafe.Pointer(&t)), unsafe.Sizeof(t), 0, 0)
	if errno != 0 {
		r.slots.table = errno
	}
}

// Registers says whether reads name files by registered index, which saves the kernel a look-up each, and why memory
// cannot be registered, at all or some of it; nil while nothing was refused.
func (r *Ring) Registers() (files bool, memory error) {
	s := &r.slots
	s.Lock()
	defer s.Unlock()
	if s.table != nil {
		return r.fixedFiles, fmt.Errorf("a table of memory: %w", s.table)
	}
	return r.fixedFiles, s.refused
}

// Attach says that mem, outside the Go heap, is the memory of a slot. The kernel is told, and pins it, when something is
// first read into it, so memory that is never used is never made present.
func (r *Ring) Attach(slot int, mem []byte) {
	if slot < 0 || len(mem) == 0 {
		panic(fmt.Sprintf("uring: %d bytes of memory for slot %d", len(mem), slot))
	}
	s := &r.slots
	s.Lock()
	defer s.Unlock()
	for len(s.slots) <= slot {
		s.slots = append(s.slots, slotMemory{place: -1})
	}
	m := &s.slots[slot]
	if m.mem != nil {
		panic(fmt.Sprintf("uring: slot %d was attached twice", slot))
	}
	m.mem = mem
	switch n := len(s.free); {
	case s.table != nil:
	case len(mem) > MaxSlot:
		s.refuse(fmt.Errorf("slot %d of %d bytes: the kernel takes %d", slot, len(mem), MaxSlot))
	case n > 0:
		m.place, s.free = s.free[n-1], s.free[:n-1]
	case s.places < Slots:
		m.place = int32(s.places)
		s.places++
	default:
		s.refuse(fmt.Errorf("more than %d slots", Slots))
	}
}

// Detach ends the kernel's hold on a slot's memory, which may be given back then. No read into it may be under way.
func (r *Ring) Detach(slot int) {
	s := &r.slots
	s.Lock()
	defer s.Unlock()
	if slot < 0 || slot >= len(s.slots) {
		return
	}
	m := &s.slots[slot]
	if m.there {
		s.full = false
		s.vec = unix.Iovec{}
		_ = r.update(m.place) // taking out what is there cannot be refused
	}
	if m.place >= 0 {
		s.free = append(s.free, m.place)
	}
	*m = slotMemory{place: -1}
}

func (s *slotTable) refuse(err error) {
	if s.refused == nil {
		s.refused = err
	}
}

// update puts the memory in vec into a place of the kernel's table, or takes out what is there.
func (r *Ring) update(place int32) error {
	u := rsrcUpdate{offset: uint32(place), data: uint64(uintptr(unsafe.Pointer(&r.slots.vec))), nr: 1}
	_, _, errno := unix.Syscall6(sysRegister, uintptr(r.fd), registerBuffersUpdate, uintptr(unsafe.Pointer(&u)), unsafe.Sizeof(u), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// registered makes sure that the kernel knows the slot's memory, if it can, and gives its place there, else -1.
func (r *Ring) registered(slot int, b []byte) (place int32) {
	s := &r.slots
	s.Lock()
	defer s.Unlock()
	if slot < 0 || slot >= len(s.slots) || s.slots[slot].mem == nil {
		return -1
	}
	m := &s.slots[slot]
	lo, at := uintptr(unsafe.Pointer(&m.mem[0])), uintptr(unsafe.Pointer(&b[0]))
	if at < lo || at+uintptr(len(b)) > lo+uintptr(len(m.mem)) {
		panic(fmt.Sprintf("uring: a read into slot %d goes outside its memory", slot))
	}
	if m.there {
		return m.place
	}
	if m.place < 0 || s.full {
		return -1
	}
	s.vec.Base = &m.mem[0]
	s.vec.SetLen(len(m.mem))
	if err := r.update(m.place); err != nil {
		s.full = true
		s.refuse(fmt.Errorf("register memory: %w", err))
		return -1
	}
	m.there = true
	return m.place
}
