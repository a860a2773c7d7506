package prefetch

import (
	"reflect"
	"testing"
)

// TestPortion: parts of a score add up to it, every count of it, and a part is what its share says.
func TestPortion(t *testing.T) {
	var n counts
	if want := reflect.TypeOf(n).Size() / 8; len(n.fields()) != int(want) {
		t.Fatalf("%d fields of %d are shared", len(n.fields()), want)
	}
	for i, v := range n.fields() {
		*v = int64(1000*i + 7)
	}
	whole := n.stats(2, "")
	sum := Stats{}
	for _, r := range [][2]int64{{0, 1}, {1, 4}, {4, 9}} {
		p := whole.Portion(r[0], r[1], 9)
		if got, want := p.Late, whole.Late*(r[1]-r[0])/9; got < want || got > want+1 {
			t.Errorf("parts %v of 9 have %d late reads of %d", r, got, whole.Late)
		}
		sum = sum.Plus(p)
	}
	if sum != whole {
		t.Errorf("the parts make %+v, want %+v", sum, whole)
	}
}
