//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

import (
	"fmt"
	"unsafe"

	"terrace/compute"
)

// guest is what the host computes meanwhile.
type guest struct {
	fill func()
	held bool // the list has rows that wait for it
}

var _ compute.Guest = (*encoder)(nil)

// OnRun implements compute.Guest.
func (e *encoder) OnRun(f func()) { e.guest.fill = f }

// Await implements compute.Guest. The rows lie in the upload ring until the device has copied them.
func (e *encoder) Await(dst compute.Tensor, first, n int) []float32 {
	t := own(dst)
	if first < 0 || n < 1 || first+n > t.rows {
		panic(fmt.Sprintf("vulkan: Await of rows %d to %d of %d", first, first+n, t.rows))
	}
	if e.guest.fill == nil {
		panic("vulkan: Await before OnRun")
	}
	e.drain()
	e.reserve(4*n*t.cols, 1)
	b, addr := e.room(4 * n * t.cols)
	if e.err == nil && !e.guest.held {
		e.guest.held = true
		e.list = append(e.list, C.TV_HOLD)
		e.epoch++ // what follows begins with a barrier
	}
	t.touch()
	e.out(&t.track)
	e.order()
	if e.err == nil {
		to := t.region()
		e.list = append(e.list, C.TV_COPY)
		e.u64(uint64(e.up.b.buffer), to.buffer(), addr-uint64(e.up.b.address), to.at+uint64(first)*uint64(t.cols)*4, uint64(len(b)))
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n*t.cols)
}

// serve runs the guest's part of the list just submitted, and lets the device go on.
func (e *encoder) serve() error {
	if !e.guest.held {
		return nil
	}
	e.guest.held = false
	defer func() { // whatever becomes of the guest: a device must not wait for ever
		if r := recover(); r != nil {
			C.tv_resume(e.b.dev.d)
			panic(r)
		}
	}()
	e.guest.fill()
	return e.b.dev.check("going on", C.tv_resume(e.b.dev.d))
}
