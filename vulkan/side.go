//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

import (
	"errors"
	"sync"
)

// side moves what caches hold, apart from the encoder: a cache may be copied while others are computed with. Each call is
// done when it returns. Failures show in the encoder's next Submit, since these calls have no result.
type side struct {
	mu   sync.Mutex
	b    *Backend
	d    *C.tv_device
	ring ring
	list commands
}

// commands is a list being made.
type commands struct{ words []uint32 }

func (c *commands) u64(v ...uint64) {
	for _, x := range v {
		c.words = append(c.words, uint32(x), uint32(x>>32))
	}
}

// copy copies n bytes of device memory.
func (c *commands) copy(to region, at uint64, from region, off, n uint64) {
	if n > 0 {
		c.words = append(c.words, C.TV_COPY)
		c.u64(from.buffer(), to.buffer(), from.at+off, to.at+at, n)
	}
}

// sideBytes is the memory through which bytes go to and from the host.
const sideBytes = 4 << 20

func (s *side) init(b *Backend, typ uint32) error {
	s.b, s.ring = b, ring{d: b.dev, typ: typ}
	if s.d = b.dev.recorder(false, nil); s.d == nil {
		return errors.New("vulkan: no memory for the objects of a device")
	}
	return s.ring.grow(sideBytes)
}

func (s *side) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.d != nil {
		s.ring.close()
		C.tv_close(s.d)
		s.d = nil
	}
}

// run submits the list and waits for it. Under mu.
func (s *side) run(host int) bool {
	err := s.try(host)
	if err != nil {
		s.b.enc.report(err)
	}
	return err == nil
}

// try is run for those who can tell. Under mu.
func (s *side) try(host int) error {
	if len(s.list.words) == 0 {
		return nil
	}
	if s.d == nil {
		panic("vulkan: a cache of a closed backend")
	}
	err := s.b.dev.check("a copy of a cache", s.b.dev.submit(s.d, s.list.words, host))
	if err == nil {
		err = s.b.dev.check("a copy of a cache", s.b.dev.wait(s.d))
	}
	s.list.words = s.list.words[:0]
	return err
}

// do runs what f lists.
func (s *side) do(f func(c *commands)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.list)
	s.run(0)
}

// read copies device memory to dst.
func (s *side) read(dst []byte, from region, at uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(dst) > 0 {
		n := min(len(dst), len(s.ring.mem))
		s.list.words = append(s.list.words, C.TV_COPY)
		s.list.u64(from.buffer(), uint64(s.ring.b.buffer), from.at+at, 0, uint64(n))
		if !s.run(1) {
			return
		}
		copy(dst[:n], s.ring.mem)
		dst, at = dst[n:], at+uint64(n)
	}
}

// write copies src to device memory.
func (s *side) write(to region, at uint64, src []byte) {
	if err := s.put(to, at, src); err != nil {
		s.b.enc.report(err)
	}
}

// put is write for those who can tell.
func (s *side) put(to region, at uint64, src []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(src) > 0 {
		n := copy(s.ring.mem, src)
		s.list.words = append(s.list.words, C.TV_COPY)
		s.list.u64(uint64(s.ring.b.buffer), to.buffer(), 0, to.at+at, uint64(n+3)&^3)
		if err := s.try(0); err != nil {
			return err
		}
		src, at = src[n:], at+uint64(n)
	}
	return nil
}

// clear sets n bytes to zero.
func (s *side) clear(m region, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list.words = append(s.list.words, C.TV_FILL)
	s.list.u64(m.buffer(), m.at, n)
	s.list.words = append(s.list.words, 0)
	s.run(0)
}
