package model

// NGramRows is the rows that the last token of window needs.
func NGramRows(mul, sizes, starts []uint64, per int, end int32, window []int32) []int64 {
	g := &ngrams{mul: mul, sizes: sizes, starts: starts, per: per, end: end}
	out := make([]int64, g.heads())
	g.rows(out, window)
	return out
}
