package tokenizer

import (
	"bytes"
	"slices"
	"sort"
	"strings"
)

// hit is an occurrence of a special token's text: bytes from..to of the text.
type hit struct {
	from, to int
	id       int32
}

// matcher finds the texts of special tokens: control, unknown and user-defined ones. The ids stand sorted by text, so
// that all texts with a given beginning are neighbours, and each further byte narrows the range.
type matcher struct {
	of    *texts
	ids   []int32
	first [257]int32 // ids[first[b]:first[b+1]] begin with byte b
	only  int        // the one byte that all texts begin with, -1 if there are several
}

func newMatcher(of *texts, ids []int32) *matcher {
	m := &matcher{of: of, ids: ids, only: -1}
	slices.SortFunc(m.ids, func(a, b int32) int { return bytes.Compare(of.at(a), of.at(b)) })
	for b := range 256 {
		m.first[b+1] = int32(sort.Search(len(ids), func(i int) bool { return int(of.at(ids[i])[0]) > b }))
		if m.first[b+1]-m.first[b] == int32(len(ids)) && len(ids) > 0 {
			m.only = b
		}
	}
	return m
}

// find appends every occurrence in s of a token that allowed accepts, by rising position. allowed is called with
// positions that never fall.
func (m *matcher) find(dst []hit, s string, allowed func(id int32, from, to int) bool) []hit {
	if len(m.ids) == 0 {
		return dst
	}
	for i := 0; i < len(s); i++ {
		if m.only >= 0 {
			k := strings.IndexByte(s[i:], byte(m.only))
			if k < 0 {
				break
			}
			i += k
		}
		lo, hi := int(m.first[s[i]]), int(m.first[int(s[i])+1])
		for depth := 1; lo < hi; depth++ {
			if id := m.ids[lo]; len(m.of.at(id)) == depth {
				if allowed(id, i, i+depth) {
					dst = append(dst, hit{i, i + depth, id})
				}
				lo++
			}
			if i+depth == len(s) {
				break
			}
			b := s[i+depth]
			lo += sort.Search(hi-lo, func(k int) bool { return m.of.at(m.ids[lo+k])[depth] >= b })
			n := sort.Search(hi-lo, func(k int) bool { return m.of.at(m.ids[lo+k])[depth] > b })
			hi = lo + n
		}
	}
	return dst
}

// partition leaves, of all occurrences by rising position, those that a search for one token after the other, longest
// text first, would find; equally long ones by id. Where no two overlap, that is all of them.
func partition(hits []hit) []hit {
	clash := false
	for i := 1; i < len(hits) && !clash; i++ {
		clash = hits[i].from < hits[i-1].to
	}
	if !clash {
		return hits
	}
	// Within a cluster of overlapping occurrences the longest wins, then the longest of what is left free.
	out := hits[:0]
	for i := 0; i < len(hits); {
		end, k := hits[i].to, i+1
		for k < len(hits) && hits[k].from < end {
			end = max(end, hits[k].to)
			k++
		}
		if k == i+1 {
			out = append(out, hits[i])
		} else {
			out = append(out, longestFirst(hits[i:k])...)
		}
		i = k
	}
	return out
}

// longestFirst resolves one cluster. The result is a fresh slice, by rising position.
func longestFirst(cluster []hit) []hit {
	byLength := slices.Clone(cluster)
	slices.SortFunc(byLength, func(a, b hit) int {
		if la, lb := a.to-a.from, b.to-b.from; la != lb {
			return lb - la
		}
		if a.id != b.id {
			return int(a.id - b.id)
		}
		return a.from - b.from
	})
	base := cluster[0].from
	end := base
	for _, h := range cluster {
		end = max(end, h.to)
	}
	taken := make([]bool, end-base)
	var out []hit
	for _, h := range byLength {
		// No taken occurrence is shorter than h, so one that overlaps h covers its first or its last byte.
		if taken[h.from-base] || taken[h.to-1-base] {
			continue
		}
		for i := h.from; i < h.to; i++ {
			taken[i-base] = true
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b hit) int { return a.from - b.from })
	return out
}
