package tokenizer

import (
	"math"
	"sync/atomic"
)

// spm merges by score: of all neighbouring symbols whose joined text is a token, those that make the token with the highest
// score, the leftmost first. Symbols are characters to begin with. One that is no token in the end becomes byte tokens.
type spm struct {
	index   *textIndex
	order   []uint32   // of each token: the smaller, the earlier it is made; noOrder for what plain text must not become
	bytes   [256]int32 // token of each byte that is left over, -1 if it is lost
	longest int        // bytes of the longest text that a merge makes
	cache   pieceCache
}

const noOrder = math.MaxUint32

// scoreOrder turns scores into numbers that rise as scores fall; equal scores give equal numbers, none gives noOrder.
func scoreOrder(score float32) uint32 {
	if score == 0 {
		score = 0 // there are two zeros, and they are equal
	}
	b := math.Float32bits(score)
	if b>>31 == 0 {
		return ^(b | 1<<31)
	}
	return b
}

// find returns the token of text and its order, -1 and noOrder if there is none or plain text must not become it.
func (m *spm) find(text string) (int32, uint32) {
	if len(text) <= m.longest {
		if id := m.index.findString(text); id >= 0 && m.order[id] != noOrder {
			return id, m.order[id]
		}
	}
	return -1, noOrder
}

// encode appends the ids of one piece. s is not kept.
func (m *spm) encode(dst []int32, s string, w *scratch) []int32 {
	for len(s) > maxPiece {
		dst = m.encode(dst, s[:maxPiece], w)
		s = s[maxPiece:]
	}
	cached := len(s) <= maxCachedText
	var slot *atomic.Pointer[cachedPiece]
	if cached {
		slot = m.cache.slot(s)
		if e := slot.Load(); e != nil && string(e.text[:e.nText]) == s {
			return append(dst, e.ids[:e.nIDs]...)
		}
	}
	base := len(dst)
	if len(s) > linearPiece {
		dst = m.encodeHeap(dst, s, w)
	} else {
		dst = m.encodeShort(dst, s)
	}
	if n := len(dst) - base; cached && n <= maxCachedIDs {
		slot.Store(newCachedPiece(s, dst[base:]))
	}
	return dst
}

// encodeShort merges a piece of at most linearPiece bytes by scanning for the best pair.
func (m *spm) encodeShort(dst []int32, s string) []int32 {
	var (
		starts [linearPiece + 1]int  // of each symbol, and the end of the last
		ids    [linearPiece]int32    // of symbols that a merge has made, -1 for others
		best   [linearPiece]struct { // what symbols i and i+1 make
			order uint32
			id    int32
		}
	)
	n := 0
	for i := 0; i < len(s); i += symbolLen(s[i]) {
		starts[n], ids[n] = i, -1
		n++
	}
	starts[n] = len(s)
	look := func(i int) { best[i].id, best[i].order = m.find(s[starts[i]:starts[i+2]]) }
	for i := range n - 1 {
		look(i)
	}
	for n > 1 {
		at, low := -1, uint32(noOrder)
		for i := range best[:n-1] {
			if best[i].order < low {
				at, low = i, best[i].order
			}
		}
		if at < 0 {
			break
		}
		ids[at] = best[at].id
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(starts[at+1:n], starts[at+2:n+1])
		copy(best[at:n-2], best[at+1:n-1])
		n--
		if at > 0 {
			look(at - 1)
		}
		if at < n-1 {
			look(at)
		}
	}
	for i, id := range ids[:n] {
		dst = m.emit(dst, id, s[starts[i]:starts[i+1]])
	}
	return dst
}

// emit appends a symbol: what a merge has made, else the token of a single character, else those of its bytes.
func (m *spm) emit(dst []int32, id int32, text string) []int32 {
	if id < 0 {
		id, _ = m.find(text)
	}
	if id >= 0 {
		return append(dst, id)
	}
	for i := range len(text) {
		if id := m.bytes[text[i]]; id >= 0 {
			dst = append(dst, id)
		}
	}
	return dst
}

// encodeHeap merges a long piece in n log n. Symbols go by the byte they start at: a linked list, and candidates in a heap.
func (m *spm) encodeHeap(dst []int32, s string, w *scratch) []int32 {
	n := int32(len(s))
	w.sym, w.next, w.prev, w.heap = w.sym[:0], w.next[:0], w.prev[:0], w.heap[:0]
	for range n {
		w.sym, w.next, w.prev = append(w.sym, -1), append(w.next, -1), append(w.prev, -1)
	}
	last := int32(-1)
	for i := int32(0); i < n; i = w.next[i] {
		w.prev[i], last = last, i
		w.next[i] = min(i+int32(symbolLen(s[i])), n)
	}
	enter := func(at int32) {
		mid := w.next[at]
		if mid == n {
			return
		}
		end := w.next[mid]
		if id, order := m.find(s[at:end]); id >= 0 {
			w.heap = push(w.heap, candidate{order: uint64(order)<<32 | uint64(at), left: mid, right: end, result: id})
		}
	}
	for i := int32(0); i < n; i = w.next[i] {
		enter(i)
	}
	for len(w.heap) > 0 {
		var c candidate
		c, w.heap = pop(w.heap)
		// The candidate is stale unless its symbols still end where they did. One that was merged away ends nowhere.
		at := int32(uint32(c.order))
		if w.next[at] != c.left || w.next[c.left] != c.right {
			continue
		}
		w.sym[at] = c.result
		w.next[at], w.next[c.left] = c.right, -1
		if c.right < n {
			w.prev[c.right] = at
			enter(at)
		}
		if w.prev[at] >= 0 {
			enter(w.prev[at])
		}
	}
	for i := int32(0); i < n; i = w.next[i] {
		dst = m.emit(dst, w.sym[i], s[i:w.next[i]])
	}
	return dst
}
