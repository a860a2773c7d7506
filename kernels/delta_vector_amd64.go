//go:build amd64 && !noasm

package kernels

func deltaStepAVX2(out, s, q, k, v []float32, decay, beta, scale float32) {
	n := len(v) &^ 15
	if n > 0 {
		deltaAVX2(&out[0], &s[0], &q[0], &k[0], &v[0], len(k), 4*len(v), n, decay, beta, scale)
	}
	deltaColumns(out, s, q, k, v, decay, beta, scale, n)
}

func deltaStepAVX512(out, s, q, k, v []float32, decay, beta, scale float32) {
	n := len(v) &^ 15
	if n > 0 {
		deltaAVX512(&out[0], &s[0], &q[0], &k[0], &v[0], len(k), 4*len(v), n, decay, beta, scale)
	}
	deltaColumns(out, s, q, k, v, decay, beta, scale, n)
}

func scanStepAVX2(d, s, c, b []float32, decay float32) {
	n := len(d) &^ 15
	if n > 0 {
		scanAVX2(&d[0], &s[0], &c[0], &b[0], len(b), 4*len(d), n, decay)
	}
	scanColumns(d, s, c, b, decay, n)
}

func scanStepAVX512(d, s, c, b []float32, decay float32) {
	n := len(d) &^ 15
	if n > 0 {
		scanAVX512(&d[0], &s[0], &c[0], &b[0], len(b), 4*len(d), n, decay)
	}
	scanColumns(d, s, c, b, decay, n)
}

func l2NormVector(x []float32, eps float32) {
	n := len(x) &^ 7
	if n == 0 || n > callElems {
		l2NormGeneric(x, eps)
		return
	}
	var acc [8]float64
	sumSquaresAVX2(&x[0], n, &acc[0])
	for i, v := range x[n:] {
		acc[i] += float64(float64(v) * float64(v))
	}
	scale := normScale(join8f64(&acc), 1, eps)
	scaleAVX2(&x[0], n, scale)
	for i := n; i < len(x); i++ {
		x[i] = float32(x[i] * scale)
	}
}

func conv4VectorAVX2(out, x0, x1, x2, x3, w []float32, ld int) {
	i := 0
	for n := len(out) &^ 7; i < n; {
		m := min(n-i, callElems)
		conv4AVX2(&out[i], &x0[i], &x1[i], &x2[i], &x3[i], &w[i], ld, m)
		i += m
	}
	if i < len(out) {
		conv4Generic(out[i:], x0[i:], x1[i:], x2[i:], x3[i:], w[i:], ld)
	}
}

func conv4VectorAVX512(out, x0, x1, x2, x3, w []float32, ld int) {
	i := 0
	for n := len(out) &^ 15; i < n; {
		m := min(n-i, callElems)
		conv4AVX512(&out[i], &x0[i], &x1[i], &x2[i], &x3[i], &w[i], ld, m)
		i += m
	}
	if i < len(out) {
		conv4VectorAVX2(out[i:], x0[i:], x1[i:], x2[i:], x3[i:], w[i:], ld)
	}
}

// siluMulWide leaves what is left of 16 to AVX2.
func siluMulWide(dst, gate, up []float32) {
	for len(dst) >= 16 {
		n := min(len(dst)&^15, callElems)
		siluMulAVX512(&dst[0], &gate[0], &up[0], n)
		dst, gate, up = dst[n:], gate[n:], up[n:]
	}
	siluMulVector(dst, gate, up)
}

func sigmoidMulVector(dst, gate, x []float32) {
	for len(dst) >= 8 {
		n := min(len(dst)&^7, callElems)
		sigmoidMulAVX2(&dst[0], &gate[0], &x[0], n)
		dst, gate, x = dst[n:], gate[n:], x[n:]
	}
	sigmoidMulGeneric(dst, gate, x)
}

func sigmoidMulWide(dst, gate, x []float32) {
	for len(dst) >= 16 {
		n := min(len(dst)&^15, callElems)
		sigmoidMulAVX512(&dst[0], &gate[0], &x[0], n)
		dst, gate, x = dst[n:], gate[n:], x[n:]
	}
	sigmoidMulVector(dst, gate, x)
}
