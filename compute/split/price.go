package split

import (
	"time"

	"terrace/compute"
)

// price is what an expert in the host's memory costs, in seconds of the host's time, either way: computed there, or handed to the
// device. Both follow what was measured.
type price struct {
	one, more float64 // computed: a byte for one row; a byte and a row for several
	copy      float64 // a byte copied for the device

	bytes, work float64 // queued: bytes, and bytes times rows
	rows        bool    // of several rows
	tries       int
}

// The first guesses: a middling processor and link.
const (
	guessOne  = 1 / 15e9
	guessMore = 1 / 60e9
	guessCopy = 1 / 6e9

	priceShare = 0.2 // of a new measurement
	// priceTry is how often the other way is tried with several rows, so that its price is known.
	priceTry = 64
)

func (p *price) init() { p.one, p.more, p.copy = guessOne, guessMore, guessCopy }

func sizeOf(x *compute.Expert) float64 {
	return float64(len(x.Gate.Data) + len(x.Up.Data) + len(x.Down.Data))
}

// upload says whether the device shall have an expert for so many rows.
func (p *price) upload(x *compute.Expert, rows int) bool {
	if rows <= 1 {
		return p.copy < p.one
	}
	p.tries++
	better := p.copy < p.more*float64(rows)
	return better != (p.tries%priceTry == 0)
}

// queued tells that the host will compute an expert.
func (p *price) queued(x *compute.Expert, rows int) {
	p.bytes += sizeOf(x)
	p.work += sizeOf(x) * float64(rows)
	p.rows = p.rows || rows > 1
}

// ran tells that it has computed those queued.
func (p *price) ran(d time.Duration) {
	at, n := &p.one, p.bytes
	if p.rows {
		at, n = &p.more, p.work
	}
	if n > 0 {
		*at += priceShare * (d.Seconds()/n - *at)
	}
	p.bytes, p.work, p.rows = 0, 0, false
}

// copied tells how long it took to hand an expert to the device.
func (p *price) copied(x *compute.Expert, d time.Duration) {
	if n := sizeOf(x); n > 0 {
		p.copy += priceShare * (d.Seconds()/n - p.copy)
	}
}
