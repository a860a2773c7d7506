package prefetch

import "terrace/tiers"

// Over makes an expert cache usable by a pipeline.
func Over(c *tiers.Cache) Cache { return over{c} }

type over struct{ *tiers.Cache }

func (o over) Settle(layer int, truth []int32) { o.Cache.Settle(layer, truth) }

func (o over) State(layer int, expert int32) tiers.State { return o.Contains(layer, int(expert)) }

func (o over) Withdraw(layer int, expert int32) { o.Cache.Withdraw(layer, expert) }

func (o over) Flow() Flow {
	s := o.Disk()
	return Flow{Pending: o.Pending(), Demanded: s.DemandBytes, Read: s.DemandBytes + s.GuessBytes, Busy: s.Busy, ExpertBytes: o.MeanBytes()}
}
