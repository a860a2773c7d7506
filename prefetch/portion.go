package prefetch

// Portion is one part of a score that several share: where of equal parts make s whole, those from lo up to hi. Portions that
// cover all parts add up to s exactly.
func (s Stats) Portion(lo, hi, of int64) Stats {
	n := s.n
	for _, v := range n.fields() {
		*v = *v*hi/of - *v*lo/of
	}
	return n.stats(s.Depth, s.DisabledReason)
}

// Plus is s and what o adds to it; depth and reason are o's, the later ones.
func (s Stats) Plus(o Stats) Stats {
	n, add := s.n, o.n
	sum := n.fields()
	for i, v := range add.fields() {
		*sum[i] += *v
	}
	return n.stats(o.Depth, o.DisabledReason)
}

// fields are all counts.
func (n *counts) fields() [18]*int64 {
	return [...]*int64{&n.issued, &n.used, &n.late, &n.wasted, &n.cancelled, &n.dropped, &n.revived, &n.refused, &n.unworth,
		&n.needed[0], &n.needed[1], &n.needed[2], &n.needed[3], &n.hits[0], &n.hits[1], &n.truths[0], &n.truths[1], &n.unscored}
}
