package prefetch

import (
	"time"

	"terrace/router"
)

// Flow is what a cache tells about its disk.
type Flow struct {
	Pending     int64         // bytes of experts whose reads wait or are under way
	Demanded    int64         // bytes read for demands, ever
	Read        int64         // bytes read, ever
	Busy        time.Duration // time with a read under way, ever
	ExpertBytes int64         // of a mean expert
}

// price says which guesses are worth a read. It works with what the last decode steps showed: how long a layer takes, how
// fast the disk reads, what share of the time it reads for demands.
//
// A guess with chance p saves p times the part of its read that is over when the layer comes; it costs, with chance 1-p,
// the time that a demand may have to wait behind it: its read, times the chance that a demand comes meanwhile. Right
// guesses cost nothing: their bytes would have been read anyway.
type price struct {
	chance [MaxDepth]router.Chance // of guesses whose expert was absent, by distance

	least float64 // chance from which a guess is read at all

	layer float64 // seconds from one layer's settlement to the next, decayed mean
	read  float64 // seconds to read an expert; 0: not known
	busy  float64 // share of the time in which demands keep the disk busy

	at    int
	since time.Time
	begun time.Time // of the decode step
	old   Flow
}

// priceDecay is the weight of the newest decode step.
const priceDecay = 1.0 / 16

// leastChance and mostChance bound the chance below which a guess is not read even where the disk has nothing else to do:
// it would push out an expert, and what such guesses read is seldom used. Between them it follows what becomes of the
// guesses read, so that usedShare of them are used in their layer's next turn, whatever the chances say: each wasted one
// raises it by chanceStep, and used ones lower it.
const (
	leastChance = 0.4
	mostChance  = 0.95
	firstChance = 0.6
	usedShare   = 0.88
	chanceStep  = 0.02
)

// came tells whether a guess that was read was used in its layer's turn.
func (p *price) came(used bool) {
	x := 0.0
	if used {
		x = 1
	}
	p.least = min(max(p.least+chanceStep*(usedShare-x), leastChance), mostChance)
}

// untested is the chance from which a guess is read while nothing is known about disk and layers.
const untested = 0.5

// settled tells that a layer of a decode step was settled; first, that it is the step's first.
func (p *price) settled(now time.Time, layer int, first bool, flow func() Flow) {
	if first {
		p.step(now, flow())
	} else if layer > p.at && !p.since.IsZero() {
		d := now.Sub(p.since).Seconds() / float64(layer-p.at)
		if p.layer == 0 {
			p.layer = d
		}
		p.layer += (d - p.layer) * priceDecay / 4
	}
	p.at, p.since = layer, now
}

// step closes the account of the step before.
func (p *price) step(now time.Time, f Flow) {
	o := p.old
	took := now.Sub(p.begun).Seconds()
	if busy := (f.Busy - o.Busy).Seconds(); !p.begun.IsZero() && busy > 0 && f.Read > o.Read && took > 0 {
		rate := float64(f.Read-o.Read) / busy
		read := float64(f.ExpertBytes) / rate
		share := min(1, float64(f.Demanded-o.Demanded)/rate/took)
		if p.read == 0 {
			p.read, p.busy = read, share
		}
		p.read += (read - p.read) * priceDecay
		p.busy += (share - p.busy) * priceDecay
	} else if !p.begun.IsZero() && f.Read == o.Read {
		p.busy -= p.busy * priceDecay
	}
	p.begun, p.old = now, f
}

// worth says whether the read of an absent expert should be queued now that is guessed with chance c for a layer whose
// turn is layers layers away, while pending bytes wait in front of it.
func (p *price) worth(c float64, layers int, pending, expert int64) bool {
	if c < p.least {
		return false
	}
	if p.read == 0 || p.layer == 0 || expert == 0 {
		return c >= max(untested, p.least)
	}
	start := float64(pending) / float64(expert) * p.read
	saved := c * min(p.read, max(0, float64(layers)*p.layer-start))
	return saved > (1-c)*p.read*p.busy
}
