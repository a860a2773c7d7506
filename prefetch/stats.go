package prefetch

import "terrace/tiers"

// counts are the pipeline's raw sums; all of them only rise.
type counts struct {
	issued, used, late, wasted, cancelled, dropped, revived, refused, unworth int64

	needed       [tiers.Resident + 1]int64
	hits, truths [MaxDepth]int64 // experts of the true choice: found among the guesses, and all
	unscored     int64
}

// Stats is the score of a pipeline. Every read that it caused ends in exactly one of four ways, decided when its layer
// is settled or its guess is taken back: Issued = Used + Wasted + Cancelled + Dropped + those still open.
type Stats struct {
	Depth     int    `json:"depth"`     // layers ahead
	Predictor string `json:"predictor"` // which one guesses, and why not a better one; whoever made it fills these in
	Ignored   string `json:"predictor_ignored,omitempty"`

	Issued int64 `json:"issued"` // reads queued on a guess: the expert was absent, and the cache had a slot
	Used   int64 `json:"used"`   // the router chose the expert, and it was resident or in flight when needed
	Late   int64 `json:"late"`   // of the used: still in the queue or being read when needed, so part of the wait was left
	// Wasted reads had started or finished when the layer was settled (or the walk given up), and the router had not
	// chosen the expert. The bytes may serve a later token: see Revived.
	Wasted    int64 `json:"wasted"`
	Cancelled int64 `json:"cancelled"` // taken back before the read started: no byte was read
	Dropped   int64 `json:"dropped"`   // not in the cache when scored: given up for demand reads before or after it was read, or failed
	Revived   int64 `json:"revived"`   // of the wasted: needed by a later token before they left the cache
	Unworth   int64 `json:"unworth"`   // guesses whose read was not worth its price when they were made
	Refused   int64 `json:"refused"`   // guesses, not reads, for which the cache had no slot at the first try

	// Recall1 and Recall2 are the share of the truly chosen experts found among the first TopK guesses made one and two
	// layers ahead: each row's own guesses with its own choice, mean over tokens and layers; 0 before anything was
	// compared. Where a layer is hinted twice from one distance the later hint counts. A layer settled with other rows
	// than it was hinted with is left out and its rows counted in Unscored.
	Recall1  float64 `json:"recall_1"`
	Recall2  float64 `json:"recall_2"`
	Unscored int64   `json:"unscored"`

	// Where the needed experts (distinct in a batch) were when their layer was settled, guessed or not, at any depth.
	NeededResident int64 `json:"needed_resident"`
	NeededInFlight int64 `json:"needed_in_flight"` // asked for, by whomever, and not whole yet
	NeededAbsent   int64 `json:"needed_absent"`

	DisabledReason string `json:"disabled_reason"` // why the depth is 0; empty otherwise

	n counts
}

// Ready is the share of the needed experts that were resident or in flight when needed; 0 if none was needed yet.
func (s Stats) Ready() float64 {
	return share(s.NeededResident+s.NeededInFlight, s.NeededResident+s.NeededInFlight+s.NeededAbsent)
}

// Since returns the score of the time between old, an earlier value of the same pipeline, and s.
func (s Stats) Since(old Stats) Stats {
	a, b := s.n, old.n
	a.issued -= b.issued
	a.used -= b.used
	a.late -= b.late
	a.wasted -= b.wasted
	a.cancelled -= b.cancelled
	a.dropped -= b.dropped
	a.revived -= b.revived
	a.refused -= b.refused
	a.unworth -= b.unworth
	a.unscored -= b.unscored
	for i := range a.needed {
		a.needed[i] -= b.needed[i]
	}
	for i := range a.hits {
		a.hits[i] -= b.hits[i]
		a.truths[i] -= b.truths[i]
	}
	return a.stats(s.Depth, s.DisabledReason)
}

// Stats returns the score so far.
func (p *Pipeline) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	reason := ""
	if p.o.Depth == 0 {
		reason = p.o.DisabledReason
	}
	depth := p.o.Depth
	if p.ctl != nil {
		depth, reason = p.ctl.best, p.ctl.reason()
	}
	return p.n.stats(depth, reason)
}

func (n counts) stats(depth int, reason string) Stats {
	return Stats{Depth: depth, Issued: n.issued, Used: n.used, Late: n.late, Wasted: n.wasted, Cancelled: n.cancelled,
		Dropped: n.dropped, Revived: n.revived, Refused: n.refused, Unworth: n.unworth,
		Recall1: share(n.hits[0], n.truths[0]), Recall2: share(n.hits[1], n.truths[1]), Unscored: n.unscored,
		NeededResident: n.needed[tiers.Resident], NeededInFlight: n.needed[tiers.Queued] + n.needed[tiers.InFlight], NeededAbsent: n.needed[tiers.Absent],
		DisabledReason: reason, n: n}
}

func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
