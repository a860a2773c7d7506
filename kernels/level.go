package kernels

import (
	"runtime"
	"sync/atomic"

	"terrace/gguf"
)

// Level is a set of instructions that kernels use. Every level gives the same bits.
type Level uint8

// The levels. One that this machine or this build lacks falls to the next lower one. Levels above the portable one are
// numbered within an architecture: arm64 has LevelNEON and amd64 the others.
const (
	LevelGeneric Level = iota // portable Go
	LevelAVX2                 // AVX2, BMI2, FMA, F16C
	LevelAVX512               // AVX-512 F, BW, VL, DQ, VNNI and VBMI, GFNI: Ice Lake, Zen 4 and later

	LevelNEON Level = 1 // NEON with SDOT
)

func (l Level) String() string {
	switch l {
	case LevelAVX512:
		return "avx512-vnni"
	case LevelAVX2: // and LevelNEON
		if runtime.GOARCH == "arm64" {
			return "neon-sdot"
		}
		return "avx2"
	}
	return "generic"
}

// level binds the functions of one Level. Entries of tiles and decode are nil where the portable code serves.
type level struct {
	id        Level
	tiles     [len(weightTable)]*tiles
	gemm      gemmTable
	gemmFloat gemmFloat
	decode    [len(weightTable)]func(dst []float32, w []byte)
	dots      func(dst []float32, ld int, w, x []float32, s *Scratch)
	superDots func(isum, msum []int32, u *super, q []int8, n int, sums []int16, step int)
	runDots   func(low, high []int32, u *run, q []int8, n int)
	quant32   func(q []int8, d []float32, sums []int16, x []float32)
	quant256  func(q []int8, d []float32, sums []int16, x []float32)
	toHalf    func(dst []byte, src []float32)
	kvQ8      func(dst []byte, x []float32)
	kvQ4      func(dst []byte, x []float32)
	rmsNorm   func(dst, x, w []float32, eps float32)
	siluMul   func(dst, gate, up []float32)
	addScaled func(dst, x []float32, w float32)
	attend    func(m *attention, s *Scratch)
	addRows   func(out, p, v []float32)
	runs      func(m *attention, s *Scratch)
	index     func(m *attention, s *Scratch)
	readLoop  func(b []byte) uint64
	sigMul    func(dst, gate, x []float32)
	l2Norm    func(x []float32, eps float32)
	deltaStep func(out, s, q, k, v []float32, decay, beta, scale float32)
	scanStep  func(d, s, c, b []float32, decay float32)
	conv4     func(out, x0, x1, x2, x3, w []float32, ld int)
}

var generic = level{
	id:        LevelGeneric,
	dots:      dotsGeneric,
	superDots: superDotsGeneric,
	runDots:   runDotsGeneric,
	quant32:   quant32Generic,
	quant256:  quant256Generic,
	toHalf:    toHalfGeneric,
	kvQ8:      kvQ8Generic,
	kvQ4:      kvQ4Generic,
	rmsNorm:   rmsNormGeneric,
	siluMul:   siluMulGeneric,
	addScaled: addScaledGeneric,
	attend:    attendGeneric,
	addRows:   addRowsGeneric,
	runs:      attendRunsGeneric,
	index:     indexGeneric,
	readLoop:  readLoopGeneric,
	l2Norm:    l2NormGeneric,
	sigMul:    sigmoidMulGeneric,
	deltaStep: deltaStepGeneric,
	scanStep:  scanStepGeneric,
	conv4:     conv4Generic,
}

func init() {
	for _, t := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16} {
		generic.decode[t] = func(dst []float32, w []byte) { widenGeneric(t, dst, w) }
	}
	bindVector()
	active.Store(levels()[best()])
}

var active atomic.Pointer[level]

func current() *level { return active.Load() }

// levels lists what this machine can run, lowest first; index is the Level.
func levels() []*level { return append([]*level{&generic}, vector()...) }

func best() Level { return Level(len(levels()) - 1) }

// Features names the instructions in use: "avx512-vnni", "avx2", "neon-sdot" or "generic".
func Features() string { return current().id.String() }

// SetLevel makes all kernels use level l, or the best one below it that this machine has, until restore is called. It is
// for tests and benches: it acts on the whole process.
func SetLevel(l Level) (restore func()) {
	old := current()
	active.Store(levels()[min(l, best())])
	return func() { active.Store(old) }
}
