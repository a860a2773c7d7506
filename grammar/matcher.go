package grammar

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

func trailing(w uint64) int { return bits.TrailingZeros64(w) }

// ErrEnded is returned by a Matcher whose text has ended with an end token.
var ErrEnded = errors.New("the text has ended")

// Matcher follows one text. It is for one goroutine; matchers of one grammar share what they learn of it.
type Matcher struct {
	sh    *shared
	ix    *Index
	on    *machine
	state int32
	ended bool
	words []uint64 // what Mask gave
	from  *mask    // what words hold
}

// lock takes the machine, a new one if it is full.
func (m *Matcher) lock() {
	m.sh.mu.Lock()
	if m.on.full() {
		m.renew()
	}
}

func (m *Matcher) renew() {
	if m.sh.machine == m.on || m.sh.machine.full() {
		m.sh.machine = newMachine(m.sh.prog, m.ix)
	}
	old := m.on
	m.on = m.sh.machine
	m.state = m.on.adopt(old, m.state)
}

// current is the mask of the state that the text is in.
func (m *Matcher) current() (*mask, error) {
	if m.ended {
		return nil, ErrEnded
	}
	k := m.on.states[m.state].mask
	if k == nil {
		if k = m.on.mask(m.state); errors.Is(m.on.err, errBranches) && len(m.on.states) > 0 {
			m.renew() // the machine held other states too
			k = m.on.mask(m.state)
		}
		if m.on.err != nil {
			return nil, m.on.err
		}
	}
	if k.count == 0 {
		return nil, errors.New("no token of the vocabulary can follow what the grammar read so far")
	}
	return k, nil
}

// Mask gives a bit for each token that may come next: token id is bit id%64 of word id/64. The words are valid until the
// next call and must not be changed. It is never empty. Errors: the vocabulary has no token to go on with, the grammar is
// too ambiguous to follow, or ErrEnded.
func (m *Matcher) Mask() ([]uint64, error) {
	m.lock()
	defer m.sh.mu.Unlock()
	k, err := m.current()
	if err != nil {
		return nil, err
	}
	if k.words != nil {
		return k.words, nil
	}
	if m.words == nil {
		m.words = make([]uint64, (m.ix.size+63)/64)
	}
	if m.from != k {
		clear(m.words)
		for _, id := range k.ids {
			m.words[id>>6] |= 1 << (id & 63)
		}
		m.from = k
	}
	return m.words, nil
}

// Apply sets the logits of the tokens that must not come next to -Inf; there is one logit for each token. It gives the
// number of tokens left, and the last of them. Errors are those of Mask.
func (m *Matcher) Apply(logits []float32) (left int, last int32, err error) {
	if len(logits) != m.ix.size {
		panic(fmt.Sprintf("grammar: %d logits for a vocabulary of %d tokens", len(logits), m.ix.size))
	}
	m.lock()
	defer m.sh.mu.Unlock()
	k, err := m.current()
	if err != nil {
		return 0, 0, err
	}
	banned := float32(math.Inf(-1))
	if k.words == nil {
		at := 0
		for _, id := range k.ids {
			fillWith(logits[at:id], banned)
			at = int(id) + 1
		}
		fillWith(logits[at:], banned)
		return k.count, k.ids[len(k.ids)-1], nil
	}
	for i, w := range k.words {
		part := logits[i*64 : min(i*64+64, len(logits))]
		if w == 0 {
			fillWith(part, banned)
			continue
		}
		last = int32(i*64 + 63 - bits.LeadingZeros64(w))
		for z := ^w; z != 0; z &= z - 1 {
			j := trailing(z)
			if j >= len(part) {
				break
			}
			part[j] = banned
		}
	}
	return k.count, last, nil
}

func fillWith(s []float32, v float32) {
	for i := range s {
		s[i] = v
	}
}

// Allows tells whether token id may come next, without the mask. Where the grammar has become too ambiguous to tell, it is
// true, as in the mask, and Accept gives the error.
func (m *Matcher) Allows(id int32) bool {
	m.lock()
	defer m.sh.mu.Unlock()
	if m.ended || id < 0 || int(id) >= m.ix.size {
		return false
	}
	to, _ := m.next(id)
	return to != dead || m.on.err != nil
}

// next is where token id leads.
func (m *Matcher) next(id int32) (to int32, ends bool) {
	if k := m.on.states[m.state].mask; k != nil && !k.has(id) {
		return dead, false
	}
	end := slices.Contains(m.ix.ends, id)
	if b := m.ix.v.Bytes(id); len(b) > 0 && !end {
		return m.on.take(m.state, b), false
	}
	if to = m.on.takeControl(m.state, id); to != dead {
		return to, false
	}
	if end && m.on.states[m.state].accept {
		return m.state, true
	}
	return dead, false
}

func (k *mask) has(id int32) bool {
	if k.words != nil {
		return k.words[id>>6]>>(id&63)&1 != 0
	}
	_, ok := slices.BinarySearch(k.ids, id)
	return ok
}

// Accept tells that token id was chosen. An error: the grammar does not allow it here or is too ambiguous to follow, and
// nothing changed; or ErrEnded.
func (m *Matcher) Accept(id int32) error {
	m.lock()
	defer m.sh.mu.Unlock()
	if m.ended {
		return ErrEnded
	}
	if id < 0 || int(id) >= m.ix.size {
		return fmt.Errorf("%s was chosen", m.ix.show(id))
	}
	to, ends := m.next(id)
	if to == dead {
		if m.on.err != nil {
			return m.on.err
		}
		return fmt.Errorf("%s is not what the grammar allows here", m.ix.show(id))
	}
	m.state, m.ended = to, ends
	return nil
}

// AcceptBytes is Accept for text that is no token of its own. An error tells how many of the bytes the grammar allows.
func (m *Matcher) AcceptBytes(b []byte) error {
	m.lock()
	defer m.sh.mu.Unlock()
	if m.ended {
		return ErrEnded
	}
	at := m.state
	for i := range b {
		if at = m.on.take(at, b[i:i+1]); at == dead {
			if m.on.err != nil {
				return m.on.err
			}
			return fmt.Errorf("the grammar allows %d of the bytes of %.40q", i, b)
		}
	}
	m.state = at
	return nil
}

// Done tells that nothing can follow: an end token came, or only end tokens may.
func (m *Matcher) Done() bool {
	m.lock()
	defer m.sh.mu.Unlock()
	return m.ended || m.on.states[m.state].accept && len(m.on.states[m.state].configs) == 0
}

// Complete tells that the text may end here.
func (m *Matcher) Complete() bool {
	m.lock()
	defer m.sh.mu.Unlock()
	return m.on.states[m.state].accept
}

// Ended tells that an end token was accepted.
func (m *Matcher) Ended() bool { return m.ended }

// Clone gives a matcher at the same place of the text.
func (m *Matcher) Clone() *Matcher {
	c := *m
	c.words, c.from = nil, nil
	return &c
}

// maxForced bounds what Forced gives.
const maxForced = 4096

// Forced gives the bytes that must come next, as far as there is no choice; they are not accepted by it.
func (m *Matcher) Forced() []byte {
	m.lock()
	defer m.sh.mu.Unlock()
	var out []byte
	for at := m.state; !m.ended && len(out) < maxForced; {
		b, ok := m.on.only(at)
		if !ok {
			break
		}
		if at = m.on.take(at, []byte{b}); at == dead {
			break
		}
		out = append(out, b)
	}
	return out
}

// only is the byte that must follow state s; false if there is none or a choice.
func (m *machine) only(s int32) (b byte, ok bool) {
	if m.states[s].accept {
		return 0, false
	}
	for _, c := range m.states[s].configs {
		in := &m.prog.insts[c.pos]
		if len(in.marks) > 0 || in.loose >= 0 {
			return 0, false
		}
		for _, e := range in.edges {
			if e.lo != e.hi || ok && e.lo != b {
				return 0, false
			}
			b, ok = e.lo, true
		}
	}
	return b, ok
}
