package sample

// What counts as a loop: one exact period over at least LoopTokens tokens and at least LoopTurns times. Texts that people wrote
// repeat themselves less: tables, lists and refrains change a word or end before.
const (
	LoopTokens = 256
	LoopTurns  = 8
	LoopPeriod = 1024 // the longest period that is looked for
)

// Loop is a repetition in an answer: Tokens tokens from At on (counted from the answer's first, 0) are one period of Period
// tokens after the other; the last one may have been cut.
type Loop struct {
	Period int `json:"period"`
	At     int `json:"at"`
	Tokens int `json:"tokens"`
}

// LoopDetector looks for a loop in the tokens of one answer as they come. It takes a fixed amount of memory (20 KiB) and, for
// each token, one comparison a period: about a microsecond. The zero value is not ready, NewLoopDetector makes one.
type LoopDetector struct {
	// The latest LoopPeriod tokens lie in recent[at:at+LoopPeriod], the oldest first; each is written twice so that they always
	// lie in a row.
	recent [2 * LoopPeriod]int32
	at     int
	// runs[i] counts the latest tokens that equal the one LoopPeriod-i places before them.
	runs  [LoopPeriod]int32
	count int
	loop  Loop
	open  bool // the loop that was found goes on
}

// NewLoopDetector makes a detector for one answer.
func NewLoopDetector() *LoopDetector {
	d := &LoopDetector{}
	for i := range d.recent {
		d.recent[i] = -1 // no token: what was not there equals nothing
	}
	return d
}

// Accept takes the next token of the answer, which must not be negative. It is true once, at the token that makes a repetition
// a loop; of several periods that fit, the shortest is told.
func (d *LoopDetector) Accept(id int32) (found bool) {
	d.count++
	window := (*[LoopPeriod]int32)(d.recent[d.at:])
	if d.loop.Period > 0 {
		if d.open = d.open && window[LoopPeriod-d.loop.Period] == id; d.open {
			d.loop.Tokens++
		}
	} else {
		best := 0
		for i, t := range window {
			if t != id {
				d.runs[i] = 0
				continue
			}
			d.runs[i]++
			if period := LoopPeriod - i; int(d.runs[i])+period >= max(LoopTokens, LoopTurns*period) {
				best = period // periods fall from here to the last
			}
		}
		if best > 0 {
			n := int(d.runs[LoopPeriod-best]) + best
			d.loop, d.open, found = Loop{Period: best, At: d.count - n, Tokens: n}, true, true
		}
	}
	d.recent[d.at], d.recent[d.at+LoopPeriod] = id, id
	d.at = (d.at + 1) % LoopPeriod
	return found
}

// Loop is the first loop of the answer, as long as it has become so far; nil: there was none.
func (d *LoopDetector) Loop() *Loop {
	if d.loop.Period == 0 {
		return nil
	}
	l := d.loop
	return &l
}
