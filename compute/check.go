package compute

import "fmt"

// Check says what is wrong with a matrix's rows or with the number of its bytes.
func (m *Matrix) Check() error {
	if m.In < 1 || m.Out < 1 {
		return fmt.Errorf("a weight of %d rows of %d elements", m.Out, m.In)
	}
	if bs := m.Type.BlockSize(); m.In%bs != 0 {
		return fmt.Errorf("rows of %d elements are no multiple of the block of %s, %d", m.In, m.Type, bs)
	}
	if want := m.Type.RowBytes(m.In) * m.Out; len(m.Data) != want {
		return fmt.Errorf("%d bytes for %d rows of %d %s elements, want %d", len(m.Data), m.Out, m.In, m.Type, want)
	}
	return nil
}

// Check says why x does not lead from rows of in elements to rows of out, its matrices' bytes not looked at.
func (x *Expert) Check(in, out int) error {
	gated, ff := x.Act != ReLU2, x.Up.Out
	if gated && (x.Gate.In != in || x.Gate.Out != ff) || !gated && x.Gate.Out != 0 || x.Up.In != in || x.Down.In != ff || x.Down.Out != out {
		return fmt.Errorf("an expert of gate %d x %d, up %d x %d, down %d x %d between rows of %d and %d, function %d", x.Gate.Out, x.Gate.In,
			x.Up.Out, x.Up.In, x.Down.Out, x.Down.In, in, out, x.Act)
	}
	for _, b := range [...]struct {
		v []float32
		n int
	}{{x.GateBias, ff}, {x.UpBias, ff}, {x.DownBias, out}} {
		if b.v != nil && len(b.v) != b.n {
			return fmt.Errorf("an expert's bias of %d elements for rows of %d", len(b.v), b.n)
		}
	}
	return nil
}

// CheckExpertRows says why an ExpertFFN cannot go from rows in of a tensor of src rows to those from first on of one of parts
// rows.
func CheckExpertRows(parts, first, src int, in []int32) error {
	if first < 0 || first+len(in) > parts {
		return fmt.Errorf("ExpertFFN into rows %d to %d of %d", first, first+len(in), parts)
	}
	for _, r := range in {
		if r < 0 || int(r) >= src {
			return fmt.Errorf("ExpertFFN of row %d of %d", r, src)
		}
	}
	return nil
}
