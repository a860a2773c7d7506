package tokenizer

import (
	"hash/maphash"
	"sync/atomic"
)

// Symbols are what merges work on: a token by its id, or a text that the vocabulary does not have (or that plain text
// must not become, such as a control token) by a number from the vocabulary size on. The latter fall back to the tokens
// of their bytes when they are left over.

const (
	// linearPiece is the longest piece, in bytes, merged by scanning for the best pair; longer ones use a heap, because
	// scanning is quadratic.
	linearPiece = 48
	// maxPiece bounds the positions that the heap can number; longer pieces are cut.
	maxPiece = 1 << 30
)

// bpe is the pair-merging vocabulary: of bytes, or with wide of UTF-8 characters.
type bpe struct {
	nVocab  int32
	bytes   [256]int32 // symbol of each byte; of each ASCII character with wide
	spare   [256]int32 // token of each byte of a symbol that is left over, nVocab or more if the byte is lost
	merges  *pairMap
	extra   texts // bytes of the symbols from nVocab on
	whole   func(piece string, scratch []byte) (int32, []byte)
	takeAll bool                    // ignore_merges: ask whole first
	wide    func(char string) int32 // symbol of a character beyond ASCII, -1 if it has none; nil for bytes
	loose   int32                   // with wide, the symbols of the bytes of characters without one begin here
	cache   pieceCache
}

// scratch is what one Encode needs beside its result; one goroutine at a time.
type scratch struct {
	sound  []byte // repaired text
	mapped []byte // printable spelling of a piece
	ends   []int
	hits   []hit
	sym    []int32
	next   []int32
	prev   []int32
	heap   []candidate
	short  [linearPiece]int32
	best   [linearPiece]uint64
}

// encode appends the ids of one piece. s is not kept.
func (b *bpe) encode(dst []int32, s string, w *scratch) []int32 {
	for len(s) > maxPiece {
		dst = b.encode(dst, s[:maxPiece], w)
		s = s[maxPiece:]
	}
	if len(s) == 1 {
		return b.emit(dst, b.bytes[s[0]])
	}
	cached := len(s) <= maxCachedText
	var slot *atomic.Pointer[cachedPiece]
	if cached {
		slot = b.cache.slot(s)
		if e := slot.Load(); e != nil && string(e.text[:e.nText]) == s {
			return append(dst, e.ids[:e.nIDs]...)
		}
	}
	base := len(dst)
	dst = b.encodeUncached(dst, s, w)
	if n := len(dst) - base; cached && n <= maxCachedIDs {
		slot.Store(newCachedPiece(s, dst[base:]))
	}
	return dst
}

func (b *bpe) encodeUncached(dst []int32, s string, w *scratch) []int32 {
	if b.takeAll || b.wide != nil && s[0] == '\n' {
		var id int32
		if id, w.mapped = b.whole(s, w.mapped[:0]); id >= 0 {
			return append(dst, id)
		}
	}
	if len(s) > linearPiece {
		return b.encodeHeap(dst, s, w)
	}
	sym := w.short[:0]
	if b.wide != nil {
		sym = b.symbols(sym, s)
	} else {
		sym = w.short[:len(s)]
		for i := range sym {
			sym[i] = b.bytes[s[i]]
		}
	}
	// best[i] is the merge of sym[i] and sym[i+1]; the rank stands in the high half, so the smallest goes first.
	best := w.best[:len(sym)-1]
	for i := range best {
		best[i] = b.merges.find(sym[i], sym[i+1])
	}
	for {
		at, low := -1, noPair
		for i, v := range best {
			if v < low {
				at, low = i, v
			}
		}
		if at < 0 {
			break
		}
		sym[at] = int32(uint32(low))
		copy(sym[at+1:], sym[at+2:])
		sym = sym[:len(sym)-1]
		copy(best[at:], best[at+1:])
		best = best[:len(best)-1]
		if at > 0 {
			best[at-1] = b.merges.find(sym[at-1], sym[at])
		}
		if at < len(best) {
			best[at] = b.merges.find(sym[at], sym[at+1])
		}
	}
	for _, id := range sym {
		dst = b.emit(dst, id)
	}
	return dst
}

// symbols appends the symbols that s begins with.
func (b *bpe) symbols(dst []int32, s string) []int32 {
	if b.wide == nil {
		for i := range len(s) {
			dst = append(dst, b.bytes[s[i]])
		}
		return dst
	}
	for i := 0; i < len(s); {
		if s[i] < 0x80 {
			dst = append(dst, b.bytes[s[i]])
			i++
			continue
		}
		_, n := decode(s, i)
		if sym := b.wide(s[i : i+n]); sym >= 0 {
			dst = append(dst, sym)
		} else {
			for k := i; k < i+n; k++ {
				dst = append(dst, b.loose+int32(s[k]))
			}
		}
		i += n
	}
	return dst
}

// emit appends a symbol: itself if it is a token, else the tokens of its bytes. Bytes without a token are lost.
func (b *bpe) emit(dst []int32, sym int32) []int32 {
	if sym < b.nVocab {
		return append(dst, sym)
	}
	for _, c := range b.extra.at(sym - b.nVocab) {
		if id := b.spare[c]; id < b.nVocab {
			dst = append(dst, id)
		}
	}
	return dst
}

// candidate is a merge that was possible when it was entered; it is stale when its two symbols have changed since.
type candidate struct {
	order       uint64 // rank<<32 | position of the left symbol
	left, right int32
	result      int32
}

// encodeHeap merges a long piece in n log n: symbols in a linked list, candidates in a heap.
func (b *bpe) encodeHeap(dst []int32, s string, w *scratch) []int32 {
	w.sym, w.next, w.prev, w.heap = b.symbols(w.sym[:0], s), w.next[:0], w.prev[:0], w.heap[:0]
	n := int32(len(w.sym))
	for i := range n {
		w.next = append(w.next, i+1)
		w.prev = append(w.prev, i-1)
	}
	w.next[n-1] = -1
	enter := func(at int32) {
		l, r := w.sym[at], w.sym[w.next[at]]
		if v := b.merges.find(l, r); v != noPair {
			w.heap = push(w.heap, candidate{order: v&^0xffffffff | uint64(at), left: l, right: r, result: int32(uint32(v))})
		}
	}
	for i := range n - 1 {
		enter(i)
	}
	for len(w.heap) > 0 {
		var c candidate
		c, w.heap = pop(w.heap)
		at := int32(uint32(c.order))
		if w.sym[at] != c.left {
			continue
		}
		right := w.next[at]
		if right < 0 || w.sym[right] != c.right {
			continue
		}
		w.sym[at] = c.result
		w.sym[right] = -1 // no candidate has a negative symbol: all that begin here are stale now
		w.next[at] = w.next[right]
		if w.next[at] >= 0 {
			w.prev[w.next[at]] = at
			enter(at)
		}
		if w.prev[at] >= 0 {
			enter(w.prev[at])
		}
	}
	for i := int32(0); i >= 0; i = w.next[i] {
		dst = b.emit(dst, w.sym[i])
	}
	return dst
}

func push(h []candidate, c candidate) []candidate {
	h = append(h, c)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].order <= c.order {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = c
	return h
}

func pop(h []candidate) (candidate, []candidate) {
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	if len(h) == 0 {
		return top, h
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].order < h[down].order {
			down++
		}
		if last.order <= h[down].order {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = last
	return top, h
}

// The piece cache is a table of a fixed number of places; a piece that hashes to a taken place replaces what is
// there. It needs no lock and never grows beyond cachePlaces entries.
const (
	cachePlaces   = 1 << 14
	maxCachedText = 30
	maxCachedIDs  = 8
)

type cachedPiece struct {
	nText, nIDs uint8
	text        [maxCachedText]byte
	ids         [maxCachedIDs]int32
}

func newCachedPiece(text string, ids []int32) *cachedPiece {
	e := &cachedPiece{nText: uint8(len(text)), nIDs: uint8(len(ids))}
	copy(e.text[:], text)
	copy(e.ids[:], ids)
	return e
}

type pieceCache struct {
	seed   maphash.Seed
	places []atomic.Pointer[cachedPiece]
}

func newPieceCache() pieceCache {
	return pieceCache{seed: maphash.MakeSeed(), places: make([]atomic.Pointer[cachedPiece], cachePlaces)}
}

func (c *pieceCache) slot(s string) *atomic.Pointer[cachedPiece] {
	return &c.places[maphash.String(c.seed, s)%cachePlaces]
}

// trim lets go of buffers that one unusually long text has left behind.
func (w *scratch) trim() {
	const keep = 1 << 16
	if cap(w.sound) > 4*keep {
		w.sound = nil
	}
	if cap(w.ends) > keep {
		w.ends = nil
	}
	if cap(w.hits) > keep {
		w.hits = nil
	}
	if cap(w.mapped) > keep {
		w.mapped = nil
	}
	if cap(w.sym) > keep {
		w.sym, w.next, w.prev = nil, nil, nil
	}
	if cap(w.heap) > keep {
		w.heap = nil
	}
}
