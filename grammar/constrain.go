package grammar

import "fmt"

// Sampler picks from logits, as *sample.Sampler does; P is its type of a token with its probability.
type Sampler[P any] interface {
	Next(logits []float32) (int32, error)
	Accept(id int32)
	// Greedy tells that Next gives the token of the highest score, has no other effect, and would give the same if tokens
	// of lower scores were banned.
	Greedy() bool
	Probs() []P
	Sure(id int32) // there was no choice but id: Probs is to tell so
}

// Chooser is a sampler that picks only what a grammar allows.
type Chooser[P any] struct {
	s   Sampler[P]
	m   *Matcher
	err error
}

// Constrain joins a sampler and a matcher. Tokens of the prompt, which the sampler should know of, go to its Accept before.
//
// The grammar comes first: the sampler's chain sees the logits of allowed tokens only, so what is drawn has the
// distribution of the chain over the allowed tokens. A greedy sampler is asked first, without a mask, and again only if the
// grammar forbids what it says: the best of all, if allowed, is the best of the allowed.
func Constrain[P any](s Sampler[P], m *Matcher) *Chooser[P] { return &Chooser[P]{s: s, m: m} }

// Matcher is the grammar's side.
func (c *Chooser[P]) Matcher() *Matcher { return c.m }

// Next picks a token; logits that the grammar forbids become -Inf. Where only end tokens are left it gives the likeliest of
// them, whatever the sampler bans. Errors are the sampler's, the matcher's, or tell that a token was accepted which the
// grammar forbids.
func (c *Chooser[P]) Next(logits []float32) (int32, error) {
	if c.err != nil {
		return 0, c.err
	}
	if c.m.Ended() {
		return 0, ErrEnded
	}
	if c.s.Greedy() && !c.m.Done() {
		id, err := c.s.Next(logits)
		if err == nil && c.m.Allows(id) {
			return id, nil
		}
	}
	left, last, err := c.m.Apply(logits)
	if err != nil {
		return 0, err
	}
	switch {
	case left == 1:
		c.s.Sure(last)
		return last, nil
	case c.m.Done():
		best := last
		for _, id := range c.m.ix.ends {
			if logits[id] > logits[best] || logits[id] == logits[best] && id < best {
				best = id
			}
		}
		c.s.Sure(best)
		return best, nil
	}
	id, err := c.s.Next(logits)
	if err != nil {
		return 0, fmt.Errorf("of %d tokens that the grammar allows none can be drawn: %w", left, err)
	}
	return id, nil
}

// Accept tells both sides that id was chosen. If the grammar forbids it, Next says so.
func (c *Chooser[P]) Accept(id int32) {
	c.s.Accept(id)
	if err := c.m.Accept(id); err != nil && c.err == nil {
		c.err = err
	}
}

// Probs is the sampler's: the tokens of the last Next with their chances, best first.
func (c *Chooser[P]) Probs() []P { return c.s.Probs() }

// Allows tells whether the grammar allows token id next.
func (c *Chooser[P]) Allows(id int32) bool { return c.err == nil && c.m.Allows(id) }
