package prefetch

import "terrace/tiers"

// Over makes an expert cache usable by a pipeline.
func Over(c *tiers.Cache) Cache { return over{c} }

type over struct{ *tiers.Cache }

func (o over) Settle(layer int, truth []int32) { o.Cache.Settle(layer, truth) }

func (o over) State(layer int, expert int32) tiers.State { return o.Contains(layer, int(expert)) }

// Withdraw settles the layer with the guesses that stay and protects these again before anything else is asked for. The
// cache's own prefetch counts take them as scored; the pipeline's do not.
func (o over) Withdraw(layer int, keep []int32) {
	o.Cache.Settle(layer, keep)
	for i, e := range keep {
		if o.Contains(layer, int(e)) != tiers.Absent {
			o.Prefetch(layer, keep[i:i+1])
		}
	}
}
