package grammar

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// Vocab is what a grammar needs to know of a vocabulary.
type Vocab interface {
	Size() int
	Bytes(id int32) []byte // what the token adds to the text; nil for control tokens
	IsEnd(id int32) bool   // it ends the generation
}

// Controls is a Vocab that knows the spelling of its control tokens, so that a grammar can ask for one of them by it. id
// must be a token whose Bytes are empty.
type Controls interface {
	Control(text string) (id int32, ok bool)
}

// Pieces is what VocabOf takes: a tokenizer.Tokenizer has it.
type Pieces interface {
	Vocab() int
	Piece(id int32) []byte
	IsEOG(id int32) bool
	IsControl(id int32) bool
	Lookup(text string) (int32, bool)
}

// VocabOf makes a vocabulary, with Controls, of a tokenizer.
func VocabOf(t Pieces) Vocab { return pieces{t} }

type pieces struct{ t Pieces }

func (p pieces) Size() int             { return p.t.Vocab() }
func (p pieces) Bytes(id int32) []byte { return p.t.Piece(id) }
func (p pieces) IsEnd(id int32) bool   { return p.t.IsEOG(id) }

func (p pieces) Control(text string) (int32, bool) {
	id, ok := p.t.Lookup(text)
	return id, ok && p.t.IsControl(id)
}

// Index is a vocabulary made ready for masks: the tree of its tokens' bytes. It may be used by several goroutines at once.
type Index struct {
	v       Vocab
	size    int
	nodes   []trieNode
	more    []int32 // the next token of the same bytes, -1 if there is none
	ends    []int32
	silent  []uint64 // tokens without bytes that do not end the generation
	longest int      // bytes of the longest token
	most    int      // bytes that what was learned of one grammar may take
}

// Bound sets how many bytes what is learned of one grammar may take before it is learned anew; without it 16 MiB. Call it before
// the first grammar meets the vocabulary.
func (ix *Index) Bound(bytes int) { ix.most = bytes }

// trieNode is a node of the tree; nodes lie in depth-first order, so a walk reads them in a row.
type trieNode struct {
	skip  int32 // the first node that is not below this one
	token int32 // the first token that ends here, -1 if none does
	depth uint16
	b     byte
}

// NewIndex reads a vocabulary. It takes about 12 bytes for each byte of the tokens that they do not share with the token
// before, and 4 for each token: 6 MB for 150 000 tokens.
func NewIndex(v Vocab) *Index {
	n := v.Size()
	ix := &Index{v: v, size: n, most: limitBytes, more: make([]int32, n), silent: make([]uint64, (n+63)/64)}
	ids := make([]int32, 0, n)
	texts := make([][]byte, n)
	for id := range int32(n) {
		ix.more[id] = -1
		b := v.Bytes(id)
		texts[id] = b
		switch {
		case v.IsEnd(id):
			ix.ends = append(ix.ends, id)
		case len(b) == 0:
			ix.silent[id>>6] |= 1 << (id & 63)
		case len(b) <= math.MaxUint16:
			ids = append(ids, id)
			ix.longest = max(ix.longest, len(b))
		}
	}
	slices.SortStableFunc(ids, func(a, b int32) int { return bytes.Compare(texts[a], texts[b]) })
	var open []int32 // the nodes on the way to the last token
	var last []byte
	for i, id := range ids {
		b := texts[id]
		if i > 0 && bytes.Equal(b, last) {
			at := &ix.nodes[open[len(b)-1]].token
			ix.more[id] = *at
			*at = id
			continue
		}
		same := 0
		for same < len(last) && same < len(b) && last[same] == b[same] {
			same++
		}
		for _, o := range open[same:] {
			ix.nodes[o].skip = int32(len(ix.nodes))
		}
		open = open[:same]
		for d := same; d < len(b); d++ {
			open = append(open, int32(len(ix.nodes)))
			ix.nodes = append(ix.nodes, trieNode{token: -1, depth: uint16(d + 1), b: b[d]})
		}
		ix.nodes[len(ix.nodes)-1].token = id
		last = b
	}
	for _, o := range open {
		ix.nodes[o].skip = int32(len(ix.nodes))
	}
	return ix
}

// Size is the number of tokens, the length of logits.
func (ix *Index) Size() int { return ix.size }

func (ix *Index) control(text string) (int32, bool) {
	c, ok := ix.v.(Controls)
	if !ok {
		return 0, false
	}
	id, ok := c.Control(text)
	if !ok || id < 0 || int(id) >= ix.size || len(ix.v.Bytes(id)) > 0 {
		return 0, false
	}
	return id, true
}

// show describes a token for an error.
func (ix *Index) show(id int32) string {
	if id < 0 || int(id) >= ix.size {
		return fmt.Sprintf("token %d of a vocabulary of %d", id, ix.size)
	}
	return fmt.Sprintf("token %d (%.40q)", id, ix.v.Bytes(id))
}
