package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"terrace/compute"
	"terrace/gguf"
	"terrace/plan"
	"terrace/vulkan"
)

// CardReport is what was measured about a graphics card.
type CardReport struct {
	Name, Device string
	Software     bool // it computes on the CPU
	Rates        plan.CardRates
}

const (
	cardRows, cardCols = 4096, 4096
	cardBytes          = 1 << 30 // of weights, read in turn so that no cache holds them
	cardSoftware       = 48 << 20
	cardRuns           = 5
	cardChain          = 8 // operations of a layer that wait for one another
)

// cardTypes are the types whose products are measured; the mean of them stands for the others.
var cardTypes = []gguf.Type{gguf.Q4_K, gguf.Q8_0, gguf.Q6_K}

// Card measures a graphics card: what its products read of weights a second, what comes over the link, and what a layer costs
// beside its weights. It takes a few seconds. Without one it is an error that wraps vulkan.ErrUnavailable.
func Card(ctx context.Context, o vulkan.Options) (*CardReport, error) {
	b, err := vulkan.New(o)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	i := b.Info()
	r := &CardReport{Name: i.Name, Device: i.String(), Software: i.Kind == vulkan.Software}
	p := &r.Rates
	p.Measured, p.Types = time.Now().UTC().Truncate(time.Second), map[string]float64{}
	offer, held, _ := b.Memory()
	size := min(int64(cardBytes), (offer-held)/4)
	if r.Software {
		size = cardSoftware
	}
	rows, cols := cardRows, cardCols
	if r.Software {
		rows, cols = 1024, 1024
	}
	for _, t := range cardTypes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v, err := cardProducts(b, t, rows, cols, size)
		if err != nil {
			return nil, err
		}
		p.Types[t.String()] = v
		p.Memory += v / float64(len(cardTypes))
	}
	if p.Layer, err = cardLayer(b, 1024); err != nil {
		return nil, err
	}
	if p.Link, err = cardLink(b); err != nil {
		return nil, err
	}
	return r, nil
}

// cardProducts is weight bytes per second of products with one column, all recorded and run at once.
func cardProducts(b *vulkan.Backend, t gguf.Type, rows, cols int, size int64) (float64, error) {
	row, err := kernelsUnit(t, cols) // zeros would be denormal scales in some types
	if err != nil {
		return 0, err
	}
	m := compute.Matrix{Type: t, In: cols, Out: rows, Data: make([]byte, rows*t.RowBytes(cols))}
	for at := 0; at < len(m.Data); {
		at += copy(m.Data[at:], row)
	}
	n := max(2, int(size/int64(len(m.Data))))
	e := b.Encoder()
	var ws []compute.Weight
	for range n {
		w, err := b.NewWeight(m)
		if err != nil {
			return 0, err
		}
		ws = append(ws, w)
	}
	x, y := b.NewTensor(1, cols), b.NewTensor(1, rows)
	x.SetRows(1)
	y.SetRows(1)
	e.Clear(x)
	if err := e.Submit(); err != nil {
		return 0, err
	}
	best := 0.0
	for range cardRuns {
		for _, w := range ws {
			e.MatMul(y, w, x)
		}
		start := time.Now()
		if err := e.Submit(); err != nil {
			return 0, err
		}
		best = max(best, float64(n*len(m.Data))/time.Since(start).Seconds())
	}
	return best, nil
}

// cardLayer is seconds of a chain of small operations, a submission and a wait.
func cardLayer(b *vulkan.Backend, cols int) (float64, error) {
	e := b.Encoder()
	x := b.NewTensor(1, cols)
	x.SetRows(1)
	e.Clear(x)
	out := make([]float32, cols)
	best := 0.0
	for range 50 {
		for range cardChain {
			e.RMSNorm(x, x, nil, 1)
		}
		e.Read(out, x)
		start := time.Now()
		if err := e.Submit(); err != nil {
			return 0, err
		}
		if s := time.Since(start).Seconds(); best == 0 || s < best {
			best = s
		}
	}
	return best, nil
}

// cardLink is bytes per second of experts that are brought to the card; 0 where its memory is the machine's.
func cardLink(b *vulkan.Backend) (float64, error) {
	if b.Tier().Unified {
		return 0, nil
	}
	b.SetTier(256 << 20)
	data := make([]byte, 16<<20)
	for i := range data {
		data[i] = byte(i)
	}
	x := compute.Expert{Up: compute.Matrix{Type: gguf.F32, In: 1024, Out: len(data) / 4096, Data: data}}
	best := 0.0
	for k := range uint64(4) {
		x.Key = k + 1
		start := time.Now()
		if err := b.Put(&x); errors.Is(err, compute.ErrNoRoom) {
			break
		} else if err != nil {
			return 0, fmt.Errorf("the link to the card: %w", err)
		}
		best = max(best, float64(len(data))/time.Since(start).Seconds())
	}
	b.SetTier(0)
	return best, nil
}
