package engine

import "slices"

// shiftLeast is how many tokens a shift leaves room for at least, beside what is kept.
const shiftLeast = 4

// shift makes room in a slot whose context is full. What is left is a text of its own: its tokens stand at other positions and
// saw other ones before them, so all behind the kept beginning is evaluated anew. That takes the time of a prompt, and is right for
// every kind of layer.
func (s *Scheduler) shift(x *slot, t *task) {
	keep := t.Keep
	if keep < 0 {
		keep = len(t.Prompt)
	}
	keep = min(keep, len(x.tokens)-shiftLeast)
	drop := t.Discard
	if drop <= 0 {
		drop = (len(x.tokens) - keep) / 2
	}
	drop = min(max(drop, 1), len(x.tokens)-keep)
	text := append(slices.Clone(x.tokens[:keep]), x.tokens[keep+drop:]...)
	t.text, t.shifted = append(text, t.chosen), true
	t.fill.drop()
	x.truncate(keep)
	t.fill = x.line.fill(t.text, s.e.budget.Checkpoints > 0)
}
