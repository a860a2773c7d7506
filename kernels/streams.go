package kernels

import (
	"math"

	"terrace/internal/fmath"
)

// MixStreams sets dst[j], for the columns lo <= j < hi, to the mean over streams c of n[c][j]*sigmoid(gate[c][j]); n and
// gate hold the streams of a row one after the other, len(dst) elements each. gate is used up.
//
// Order: sigmoid times n is rounded, then its product with the rounded 1/streams, then the sum; streams in order, from
// zero. Calls for other columns of a row may run at the same time.
func MixStreams(dst, n, gate []float32, streams, lo, hi int) {
	d := len(dst)
	if streams < 1 || lo < 0 || hi < lo || hi > d || len(n) != streams*d {
		panicf("kernels: MixStreams of columns %d to %d of %d streams of %d, %d elements", lo, hi, streams, d, len(n))
	}
	sameLen("MixStreams", len(n), len(gate))
	dst = dst[lo:hi]
	clear(dst)
	inv := 1 / float32(streams)
	for c := range streams {
		g := gate[c*d+lo : c*d+hi]
		SigmoidMul(g, g, n[c*d+lo:c*d+hi])
		AddScaled(dst, g, inv)
	}
}

// MixSilu sets x to silu(x/streams), the quotient being the product with the rounded reciprocal.
func MixSilu(x []float32, streams int) {
	inv := 1 / float32(streams)
	for i, v := range x {
		x[i] = float32(v * inv)
	}
	SigmoidMul(x, x, x)
}

// NormStreams sets each of the streams of dst to that of x divided by its own root mean square, as RMSNorm does, times its
// part of w; dst, x and w have the same length and dst may be x.
func NormStreams(dst, x, w []float32, streams int, eps float32) {
	sameLen("NormStreams", len(x), len(dst), len(w))
	if streams < 1 || len(x)%streams != 0 {
		panicf("kernels: NormStreams of %d streams in %d elements", streams, len(x))
	}
	d := len(x) / streams
	for i := 0; i < len(x); i += d {
		RMSNorm(dst[i:i+d], x[i:i+d], w[i:i+d], eps)
	}
}

// InjectStreams adds 2*sigmoid(inject[c]/streams) * y to stream c of x, streams = len(inject). The factor is rounded at
// each step, the product before the sum.
func InjectStreams(x, y, inject []float32) {
	sameLen("InjectStreams", len(x), len(y)*len(inject))
	d, inv := len(y), 1/float32(len(inject))
	for c, v := range inject {
		AddScaled(x[c*d:(c+1)*d], y, 2*fmath.Sigmoid(float32(v*inv)))
	}
}

// Engram is what an n-gram embedding brings into the streams of a row. Norms are those of NormStreams.
type Engram struct {
	Streams                      int
	Eps                          float32
	KeyNorm, QueryNorm, ConvNorm []float32 // Streams x dim
}

// Gate sets stream c of a row of out to gate[c]*val with
//
//	gate[c] = sigmoid(sgn(s)*sqrt(max(|s|, 1e-6))),  s = norm(key)[c].norm(x)[c] / sqrt(dim)
//
// and norm to the convolution's norm of out. key is used up, and out may be key. Order: the product of key and query is the float dot product
// of MatMul, times the rounded 1/sqrt(dim); the root is rounded to float32.
func (g *Engram) Gate(out, norm, x, key, val []float32, s *Scratch) {
	d, h := len(val), g.Streams
	sameLen("Engram.Gate", h*d, len(out), len(norm), len(x), len(key), len(g.KeyNorm), len(g.QueryNorm), len(g.ConvNorm))
	NormStreams(key, key, g.KeyNorm, h, g.Eps)
	NormStreams(norm, x, g.QueryNorm, h, g.Eps) // the query; its place is free until the end
	inv := float32(1 / math.Sqrt(float64(d)))
	for c := range h {
		v := float32(Dot(key[c*d:(c+1)*d], norm[c*d:(c+1)*d], s) * inv)
		root := float32(math.Sqrt(float64(max(max(v, -v), 1e-6))))
		switch {
		case v < 0:
			root = -root
		case v == 0:
			root = 0
		}
		if v != v {
			root = v
		}
		to := out[c*d : (c+1)*d]
		clear(to)
		AddScaled(to, val, fmath.Sigmoid(root))
	}
	NormStreams(norm, out, g.ConvNorm, h, g.Eps)
}

// Dot is the float dot product of MatMul: 16 accumulators by element index modulo 16, fused, joined by halves.
func Dot(a, b []float32, s *Scratch) float32 {
	sameLen("Dot", len(a), len(b))
	if len(a) == 0 {
		return 0
	}
	current().dots(s.tail[:1], 1, a, b, s)
	return s.tail[0]
}
