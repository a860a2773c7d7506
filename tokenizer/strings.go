package tokenizer

import "hash/maphash"

// texts holds many strings in one block, without a pointer for each.
type texts struct {
	blob []byte
	off  []uint32 // off[i]..off[i+1] is string i
}

func newTexts(n int) texts {
	return texts{off: append(make([]uint32, 0, n+1), 0)}
}

func (t *texts) len() int { return len(t.off) - 1 }

// at returns string i. It must not be changed, and has no room to append in place.
func (t *texts) at(i int32) []byte { return t.blob[t.off[i]:t.off[i+1]:t.off[i+1]] }

// close ends the string whose bytes were appended to blob.
func (t *texts) close() { t.off = append(t.off, uint32(len(t.blob))) }

// textIndex finds strings of a texts by value: open addressing over their numbers.
type textIndex struct {
	seed  maphash.Seed
	of    *texts
	slots []int32 // number + 1, 0 where free
}

func newTextIndex(of *texts, n int) *textIndex {
	return &textIndex{seed: maphash.MakeSeed(), of: of, slots: make([]int32, tableSize(n))}
}

// tableSize is a power of two that n entries fill to two thirds at most.
func tableSize(n int) int {
	size := 16
	for size < n+n/2 {
		size *= 2
	}
	return size
}

// find returns the number of text, or -1.
func (x *textIndex) find(text []byte) int32 {
	mask := uint64(len(x.slots) - 1)
	for h := maphash.Bytes(x.seed, text) & mask; ; h = (h + 1) & mask {
		k := x.slots[h] - 1
		if k < 0 || string(x.of.at(k)) == string(text) {
			return k
		}
	}
}

// findString is find.
func (x *textIndex) findString(text string) int32 {
	mask := uint64(len(x.slots) - 1)
	for h := maphash.String(x.seed, text) & mask; ; h = (h + 1) & mask {
		k := x.slots[h] - 1
		if k < 0 || string(x.of.at(k)) == text {
			return k
		}
	}
}

// add enters string k and returns -1, or returns the number of an equal string that is there already.
func (x *textIndex) add(k int32) int32 {
	text := x.of.at(k)
	mask := uint64(len(x.slots) - 1)
	h := maphash.Bytes(x.seed, text) & mask
	for x.slots[h] != 0 {
		if old := x.slots[h] - 1; string(x.of.at(old)) == string(text) {
			return old
		}
		h = (h + 1) & mask
	}
	x.slots[h] = k + 1
	return -1
}

// pairMap maps a pair of symbols to the merge that joins it: open addressing, no pointers.
type pairMap struct {
	seed uint64
	keys []uint64 // left<<32 | right, noPair where free
	vals []uint64 // rank<<32 | result
}

const noPair = ^uint64(0)

func newPairMap(n int) *pairMap {
	m := &pairMap{seed: maphash.String(maphash.MakeSeed(), "pairs"), keys: make([]uint64, tableSize(n))}
	m.vals = make([]uint64, len(m.keys))
	for i := range m.keys {
		m.keys[i] = noPair
	}
	return m
}

func (m *pairMap) slot(key uint64) uint64 {
	h := (key ^ m.seed) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	h ^= h >> 32
	return h & uint64(len(m.keys)-1)
}

// find returns rank<<32 | result for the pair, noPair if no merge joins it.
func (m *pairMap) find(left, right int32) uint64 {
	key := uint64(uint32(left))<<32 | uint64(uint32(right))
	for h := m.slot(key); ; h = (h + 1) & uint64(len(m.keys)-1) {
		switch m.keys[h] {
		case key:
			return m.vals[h]
		case noPair:
			return noPair
		}
	}
}

// add enters a merge. A pair that is there already keeps its earlier, better rank.
func (m *pairMap) add(left, right, result int32, rank uint32) {
	key := uint64(uint32(left))<<32 | uint64(uint32(right))
	h := m.slot(key)
	for m.keys[h] != noPair {
		if m.keys[h] == key {
			return
		}
		h = (h + 1) & uint64(len(m.keys)-1)
	}
	m.keys[h] = key
	m.vals[h] = uint64(rank)<<32 | uint64(uint32(result))
}
