package server

import "terrace/sample"

// terraceJSON is what replies say beyond the contract, in a field named terrace; there is none where nothing is to be said.
type terraceJSON struct {
	Loops []loopJSON `json:"loops"` // answers that repeat themselves
}

type loopJSON struct {
	Index int `json:"index"` // of the answer
	sample.Loop
}

// remarks are those on answers; nil: none.
func remarks(rs ...*result) *terraceJSON {
	var t *terraceJSON
	for _, r := range rs {
		if l := r.stats.Loop; l != nil {
			if t == nil {
				t = &terraceJSON{}
			}
			t.Loops = append(t.Loops, loopJSON{r.index, *l})
		}
	}
	return t
}
