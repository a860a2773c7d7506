package sample

import (
	"bytes"
	"slices"
	"strings"
)

// Breakers are texts at which the DRY penalty stops looking for repetitions, as the tokens that make them up. They may be
// shared by samplers.
type Breakers struct {
	alone []uint64            // tokens that hold a whole breaker
	tails map[int32][][]int32 // what must follow a token that begins one
}

// Limits of breakers, llama.cpp's.
const (
	maxBreaker = 40 // bytes of a text that are looked at
	maxTail    = 20 // tokens behind the first
)

// NewBreakers finds how texts are made of tokens: those that hold one, and those that end with the beginning of one,
// followed by the tokens of the rest. piece gives a token's bytes, encode the tokens of a text, without special ones.
// It looks at the whole vocabulary once for each text.
func NewBreakers(texts []string, vocab int, piece func(id int32) []byte, encode func(text string) []int32) *Breakers {
	b := &Breakers{alone: make([]uint64, (vocab+63)/64), tails: map[int32][][]int32{}}
	for _, t := range texts {
		if t == "" {
			continue
		}
		t = t[:min(len(t), maxBreaker)]
		var tails [maxBreaker][]int32
		for id := range int32(vocab) {
			p := piece(id)
			if bytes.Contains(p, []byte(t)) {
				b.alone[id>>6] |= 1 << (id & 63)
				continue
			}
			for n := min(len(t)-1, len(p)); n > 0; n-- {
				if !strings.HasSuffix(string(p), t[:n]) {
					continue
				}
				if tails[n] == nil {
					tail := encode(t[n:])
					tails[n] = tail[:min(len(tail), maxTail)]
				}
				if len(tails[n]) > 0 {
					b.tails[id] = append(b.tails[id], tails[n])
				}
			}
		}
	}
	return b
}

// single tells whether id holds a whole breaker.
func (b *Breakers) single(id int32) bool {
	return b != nil && int(id>>6) < len(b.alone) && b.alone[id>>6]>>(id&63)&1 != 0
}

// reach is how far behind the newest token a breaker lies that begins at recent[at], the newest being recent[0]: the
// number of tokens after it; -1 if none begins there.
func (b *Breakers) reach(recent []int32, at int) int {
	if b == nil {
		return -1
	}
	best := -1
	if b.single(recent[at]) {
		best = at
	}
	for _, tail := range b.tails[recent[at]] {
		if len(tail) > at {
			continue
		}
		ok := true
		for i, id := range tail {
			ok = ok && recent[at-1-i] == id
		}
		if ok && (best < 0 || at-len(tail) < best) {
			best = at - len(tail)
		}
	}
	return best
}

// dry penalises the tokens that would go on with a repetition: of n tokens, those that came after an earlier occurrence of
// the last tokens, by how long that is.
type dry struct {
	multiplier float32
	base       float64
	allowed    int
	breakers   *Breakers
	size       int     // tokens to look back on; -1: all
	ring       []int32 // the last tokens, the oldest at next if it is full
	next       int
	recent     []int32 // newest first
	match      []int32 // how long the tokens from recent[i] on are those from recent[0] on
	longest    []int32 // of each token, 0 for most
	touched    []int32
}

func newDry(p Params) *dry {
	if p.DryMultiplier == 0 || p.DryPenaltyLastN == 0 {
		return nil
	}
	d := &dry{multiplier: p.DryMultiplier, base: float64(p.DryBase), allowed: p.DryAllowedLength, breakers: p.DryBreakers,
		size: p.DryPenaltyLastN, longest: make([]int32, p.Vocab)}
	if !(p.DryBase >= 1) {
		d.base = dryBase
	}
	return d
}

// dryBase is the base in place of one below 1.
const dryBase = 1.75

func (d *dry) accept(id int32) {
	if d.size < 0 || len(d.ring) < d.size {
		d.ring = append(d.ring, id)
		return
	}
	d.ring[d.next] = id
	d.next = (d.next + 1) % d.size
}

// look fills touched and longest: the tokens to penalise and the lengths of the repetitions they would go on with.
func (d *dry) look() {
	for _, id := range d.touched {
		d.longest[id] = 0
	}
	d.touched = d.touched[:0]
	n := len(d.ring)
	if n <= d.allowed {
		return
	}
	r := d.recent[:0]
	for i := range n {
		r = append(r, d.ring[(d.next+n-1-i)%n])
	}
	d.recent = r
	limit := n // repetitions do not reach over a breaker
	for at := range r {
		if after := d.breakers.reach(r, at); after >= 0 {
			limit = after
			break
		}
	}
	if limit < d.allowed || limit == 0 {
		return
	}
	// match is the Z function of recent.
	z := slices.Grow(d.match[:0], n)[:n]
	d.match = z
	z[0] = int32(n)
	left, right := 0, 0
	for i := 1; i < n; i++ {
		k := 0
		if i < right {
			k = min(right-i, int(z[i-left]))
		}
		for i+k < n && r[k] == r[i+k] {
			k++
		}
		if z[i] = int32(k); i+k > right {
			left, right = i, i+k
		}
	}
	for i := 1; i < n; i++ {
		length := min(z[i], int32(limit))
		id := r[i-1] // what came after
		if length == 0 || int(length) < d.allowed || length <= d.longest[id] || d.breakers.single(id) {
			continue
		}
		if d.longest[id] == 0 {
			d.touched = append(d.touched, id)
		}
		d.longest[id] = length
	}
}

// penalty is what is taken off the logit of a token that would go on with a repetition of that length.
func (d *dry) penalty(length int32) float32 {
	p := float64(d.multiplier)
	for range int(length) - d.allowed {
		if p = float64(p * d.base); p > dryMost {
			return dryMost
		}
	}
	return float32(p)
}

// dryMost bounds a penalty, so that logits stay finite.
const dryMost = 1e30
