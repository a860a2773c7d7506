//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

import (
	"embed"
	"encoding/binary"
	"fmt"
	"unsafe"
)

//go:embed shaders/*.spv
var shaderFiles embed.FS

// shader names a source of shaders/.
type shader uint8

const (
	shDecode shader = iota
	shQuantise
	shProduct
	shMatvec
	shTiles
	shFloats
	shTransposed
	shNorm
	shElementwise
	shRope
	shWeighted
	shStore
	shAttend
	shConv
	shGates
	shRecur
	shScores
	shBlocks
	shEngram
	shProbe
	shStream
	shRoute
	shShare
	shKeys
	shValues
	shKeyTiles
	shFloatTiles
	shValueTiles
	shHeads
	shSingle
	shaders
)

// shaderTable says which variants a shader has: with float64, with fused operations out of float64, with integer dot products.
var shaderTable = [shaders]struct {
	name          string
	f64, emu, dot bool
}{
	shDecode: {name: "decode"}, shQuantise: {name: "quantise"}, shProduct: {name: "product", dot: true}, shMatvec: {name: "matvec", dot: true},
	shTiles:  {name: "tiles", dot: true},
	shFloats: {name: "floats", emu: true}, shTransposed: {name: "transposed", emu: true}, shNorm: {name: "norm", f64: true},
	shElementwise: {name: "elementwise"}, shRope: {name: "rope"}, shWeighted: {name: "weighted"}, shStore: {name: "store", f64: true},
	shAttend: {name: "attend", emu: true}, shConv: {name: "conv", emu: true}, shGates: {name: "gates", f64: true},
	shRecur: {name: "recur", emu: true}, shScores: {name: "scores", emu: true}, shBlocks: {name: "blocks", f64: true},
	shEngram: {name: "engram", f64: true, emu: true}, shProbe: {name: "probe"}, shStream: {name: "stream"},
	shRoute: {name: "route", f64: true}, shShare: {name: "share"}, shKeys: {name: "keys", emu: true}, shValues: {name: "values", emu: true},
	shFloatTiles: {name: "floattiles", emu: true}, shKeyTiles: {name: "keytiles", emu: true}, shValueTiles: {name: "valuetiles", emu: true},
	shHeads: {name: "heads", f64: true}, shSingle: {name: "single", emu: true},
}

// pipeKey is a shader with its specialisation constants.
type pipeKey struct {
	s shader
	c [4]uint32
}

// pipelines makes what is asked for, once.
type pipelines struct {
	d        *device
	numerics Numerics
	made     map[pipeKey]uint64
	code     [shaders][]uint32
}

// get is the pipeline of a shader with the given constants.
func (p *pipelines) get(s shader, c [4]uint32) (uint64, error) {
	k := pipeKey{s, c}
	if h, ok := p.made[k]; ok {
		return h, nil
	}
	if p.code[s] == nil {
		t := &shaderTable[s]
		name := "base"
		if t.emu && p.numerics.Emulated {
			name = "emu"
		} else if t.f64 && p.numerics.Double {
			name = "f64"
		} else if t.dot && p.d.c.f.dot_product != 0 {
			name = "dot"
		}
		b, err := shaderFiles.ReadFile("shaders/" + t.name + "." + name + ".spv")
		if err != nil {
			return 0, fmt.Errorf("vulkan: %w", err)
		}
		w := make([]uint32, len(b)/4) // embedded bytes may lie anywhere
		for i := range w {
			w[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
		p.code[s] = p.modes(w)
	}
	var h C.uint64_t
	r := C.tv_pipeline(p.d.d, (*C.uint32_t)(unsafe.Pointer(&p.code[s][0])), C.size_t(4*len(p.code[s])), (*C.uint32_t)(unsafe.Pointer(&c[0])), C.uint32_t(len(c)), &h)
	if err := p.d.check("the pipeline of "+shaderTable[s].name, r); err != nil {
		return 0, err
	}
	p.made[k] = uint64(h)
	return uint64(h), nil
}

// modes adds execution modes to a shader: what float32 arithmetic is held to where the device can do it.
func (p *pipelines) modes(w []uint32) []uint32 {
	const opCapability, opExecutionMode, opEntryPoint = 17, 16, 15
	f := &p.d.c.f
	var caps, modes []uint32
	for _, m := range []struct {
		has              C.uint32_t
		capability, mode uint32
	}{{f.denorms, 4464, 4459}, {f.specials, 4466, 4461}, {f.nearest, 4467, 4462}} {
		if m.has != 0 {
			caps = append(caps, 2<<16|opCapability, m.capability)
			modes = append(modes, 4<<16|opExecutionMode, 0, m.mode, 32)
		}
	}
	out := append([]uint32(nil), w[:5]...)
	out = append(out, caps...)
	for i := 5; i < len(w); i += int(w[i] >> 16) {
		out = append(out, w[i:i+int(w[i]>>16)]...)
		if w[i]&0xffff == opEntryPoint {
			for k := 1; k < len(modes); k += 4 {
				modes[k] = w[i+2]
			}
			out = append(out, modes...)
		}
	}
	return out
}

// save keeps the pipelines for the next run.
func (p *pipelines) save(file string) error {
	n := C.tv_cache_size(p.d.d)
	if n == 0 {
		return nil
	}
	b := make([]byte, n)
	if err := p.d.check("the pipeline cache", C.tv_cache_data(p.d.d, unsafe.Pointer(&b[0]), &n)); err != nil {
		return err
	}
	return saveCache(file, b[:n])
}
