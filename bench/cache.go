package bench

import (
	"context"
	"fmt"
	"math"

	"terrace/tiers"
)

// CacheConfig says which routings are replayed and how much may be resident.
type CacheConfig struct {
	Routings []*Routing
	Shares   []float64 // residencies as shares of all experts; nil: 0.1, 0.2, 0.35, 0.5
	Rivals   bool      // policies of the literature too, and parts of the own one left out
}

// CacheReport is what `bench cache` prints.
type CacheReport struct {
	Machine    Machine         `json:"machine"`
	Commit     string          `json:"commit"`
	Model      string          `json:"model"`
	Conditions CacheConditions `json:"conditions"`
	Routings   []CacheRouting  `json:"routings"`
}

// CacheConditions is how the figures came about.
type CacheConditions struct {
	Shares []float64 `json:"shares"`
	Start  string    `json:"start"`
	Rule   string    `json:"rule"`
}

// CacheRouting holds the figures of one routing.
type CacheRouting struct {
	Routing
	Slots []int       `json:"slots"` // by share
	Rows  []CacheRow  `json:"rows"`
	Loose []CacheRow  `json:"one_touch_at_a_time"` // experts of a token are not held together: as caches are usually simulated
	Gains []CacheGain `json:"worth"`               // what knowing the choices ahead is worth to the shipped policy
}

// CacheRow is a policy's share of touches that needed no read, by residency.
type CacheRow struct {
	Policy  string    `json:"policy"`
	Ships   bool      `json:"ships,omitempty"`
	HitRate []float64 `json:"hit_rate"`
}

// CacheGain is a row with a perfect view of the layers ahead: the experts wanted there are protected if they are resident,
// or else read early as well, which takes slots before their time.
type CacheGain struct {
	Ahead   int       `json:"layers_ahead"`
	Reads   bool      `json:"reads_early"`
	HitRate []float64 `json:"hit_rate"` // touches less reads
}

// Cache replays routings against the shipped policy, others and the optimum.
func Cache(ctx context.Context, c CacheConfig) (*CacheReport, error) {
	if c.Shares == nil {
		c.Shares = []float64{0.1, 0.2, 0.35, 0.5}
	}
	r := &CacheReport{Machine: ThisMachine(), Commit: Commit(), Conditions: CacheConditions{
		Shares: c.Shares, Start: "nothing resident",
		Rule: "slots are the share of all experts, rounded down; a token's experts of one layer are held together",
	}}
	for _, t := range c.Routings {
		if r.Model != "" {
			r.Model += ", "
		}
		r.Model += t.Name
		x := CacheRouting{Routing: *t}
		for _, s := range c.Shares {
			n := int(math.Floor(s*float64(t.total()) + 1e-9))
			if n < t.TopK {
				return nil, fmt.Errorf("%s: %g %% of %d experts is %d, a token needs %d of a layer", t.Name, 100*s, t.total(), n, t.TopK)
			}
			x.Slots = append(x.Slots, min(n, t.total()))
		}
		row := func(name string, ships bool, hit func(slots int) float64) error {
			w := CacheRow{Policy: name, Ships: ships}
			for _, n := range x.Slots {
				if err := ctx.Err(); err != nil {
					return err
				}
				w.HitRate = append(w.HitRate, hit(n))
			}
			x.Rows = append(x.Rows, w)
			return nil
		}
		sim := func(s tiers.SimConfig) func(int) float64 {
			return func(slots int) float64 {
				s.Bytes, s.Slots, s.TopK = t.bytes(), slots, t.TopK
				res := tiers.Simulate(s, t.Passes)
				return res.HitRate()
			}
		}
		order := func(make func(slots int) tiers.Order) func(int) float64 {
			return func(slots int) float64 {
				o := make(slots)
				if e, ok := o.(ristrettoOrder); ok {
					defer e.close()
				}
				return sim(tiers.SimConfig{Order: o})(slots)
			}
		}
		list := []struct {
			name  string
			ships bool
			hit   func(int) float64
		}{
			{"reuse", true, sim(tiers.SimConfig{Policy: tiers.Reuse})},
			{"EWMA 64", false, sim(tiers.SimConfig{Policy: tiers.EWMA, HalfLife: 64})},
			{"EWMA 16", false, sim(tiers.SimConfig{Policy: tiers.EWMA, HalfLife: 16})},
			{"LRU", false, sim(tiers.SimConfig{Policy: tiers.LRU})},
			{"LFU", false, order(func(int) tiers.Order { return newLFU(t) })},
			{"ristretto", false, order(func(n int) tiers.Order { return ristrettoOrder{t, newRistretto(t.total(), n)} })},
			{"optimum", false, func(n int) float64 { return belady(t, n, true) }},
		}
		if c.Rivals {
			for _, p := range []struct {
				name string
				w    tiers.ReuseParts
			}{{"reuse without follow table", tiers.ReuseFollow}, {"reuse without turns", tiers.ReuseTurns}, {"reuse without fitting", tiers.ReuseFit}} {
				list = append(list, struct {
					name  string
					ships bool
					hit   func(int) float64
				}{p.name, false, sim(tiers.SimConfig{Policy: tiers.Reuse, Without: p.w})})
			}
			for _, h := range []int{4, 256} {
				list = append(list, struct {
					name  string
					ships bool
					hit   func(int) float64
				}{fmt.Sprintf("EWMA %d", h), false, sim(tiers.SimConfig{Policy: tiers.EWMA, HalfLife: h})})
			}
		}
		for _, p := range list {
			if err := row(p.name, p.ships, p.hit); err != nil {
				return nil, err
			}
		}
		loose := func(name string, hit func(slots int) float64) {
			w := CacheRow{Policy: name}
			for _, n := range x.Slots {
				w.HitRate = append(w.HitRate, hit(n))
			}
			x.Loose = append(x.Loose, w)
		}
		loose("EWMA 64", func(n int) float64 { return looseScores(t, n, newDecayed(t, 64)) })
		loose("LRU", func(n int) float64 { return looseScores(t, n, newRecent(t)) })
		loose("LFU", func(n int) float64 { return looseScores(t, n, newDecayed(t, 0)) })
		loose("ristretto", func(n int) float64 {
			p := newRistretto(t.total(), n)
			defer p.close()
			return looseRival(t, p)
		})
		if c.Rivals {
			for _, v := range rivals {
				loose(v.name, func(n int) float64 { return looseRival(t, v.make(n)) })
			}
		}
		loose("optimum", func(n int) float64 { return belady(t, n, false) })
		for _, g := range []CacheGain{{Ahead: 2}, {Ahead: t.Layers}, {Ahead: 2, Reads: true}} {
			for _, n := range x.Slots {
				g.HitRate = append(g.HitRate, sim(tiers.SimConfig{Policy: tiers.Reuse, Ahead: g.Ahead, AheadReads: g.Reads})(n))
			}
			x.Gains = append(x.Gains, g)
		}
		r.Routings = append(r.Routings, x)
	}
	return r, nil
}
