package tiers

import (
	"fmt"
	"time"
)

// Mem configures the store of tests, which makes bytes instead of reading them.
type Mem struct {
	// Fill sets dst, the exact bytes of one piece (0 gate, 1 up, 2 down), or fails. It is called on several goroutines.
	Fill  func(d *Desc, piece int, dst []byte) error
	Delay time.Duration // before each Fill
}

// NewMem makes a store without files, for tests and for engines whose experts come from elsewhere.
func NewMem(m Mem, o StoreOptions) (Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if m.Fill == nil {
		panic("tiers: a memory store without Fill")
	}
	p := &pool{name: "memory", verify: (*Desc).check, end: func() error { return nil }}
	p.read = func(r *Read, piece int) (int, error) {
		if m.Delay > 0 {
			time.Sleep(m.Delay)
		}
		s := &r.layout.spans[piece]
		if err := m.Fill(r.Desc, piece, r.Dst[s.at+s.skip:s.at+s.want()]); err != nil {
			return 0, fmt.Errorf("%v, %s: %w", r.Desc.ID, pieceNames[piece], err)
		}
		return s.size, nil
	}
	p.init(&o)
	p.run()
	return p, nil
}
