package tiers

import (
	"context"
	"strings"
	"testing"
)

// TestRestore: with every store the cache holds what was noted, whole, whatever came between; no use is counted, and a
// guess that nobody used ends as wasted.
func TestRestore(t *testing.T) {
	ctx := context.Background()
	for _, m := range allStores(t) {
		t.Run(m.name, func(t *testing.T) {
			experts := testExperts(4, 8) // layers 1 to 3 have 8
			c := newCache(t, m, experts, 2, Options{Slots: 12, TopK: 2}, StoreOptions{})
			defer closeCache(t, c)
			noted := [][]int32{nil, {0, 1, 5}, {2, 3}, {4, 6, 7}}
			if err := c.Restore(ctx, noted); err != nil {
				t.Fatal(err)
			}
			before := c.Stats()
			if before.Resident != 8 || before.Touches != 0 {
				t.Fatalf("%+v", before)
			}
			for l := 1; l < 4; l++ {
				if err := fetch(c, l, []int32{3, 5}); err != nil {
					t.Fatal(err)
				}
			}
			if n := c.Prefetch(1, []int32{7}); n != 1 {
				t.Fatalf("%d guesses read, want 1", n)
			}
			touched := c.Stats()
			if err := c.Restore(ctx, noted); err != nil {
				t.Fatal(err)
			}
			for l, got := range c.Residents() {
				if len(got) != len(noted[l]) {
					t.Fatalf("layer %d holds %v, want %v", l, got, noted[l])
				}
				for i := range got {
					if got[i] != noted[l][i] {
						t.Fatalf("layer %d holds %v, want %v", l, got, noted[l])
					}
				}
			}
			st := c.Stats()
			if st.Touches != touched.Touches || st.Issued != 1 || st.Wasted != 1 || st.Used+st.Late+st.Cancelled != 0 {
				t.Errorf("%+v", st)
			}
			if err := fetch(c, 3, []int32{4, 7}); err != nil { // checks the bytes
				t.Error(err)
			}
			if s := c.Stats(); s.Hits != st.Hits+2 {
				t.Errorf("%d hits more, want 2", s.Hits-st.Hits)
			}
		})
	}
}

func TestRestoreRefuses(t *testing.T) {
	ctx := context.Background()
	c := newCache(t, allStores(t)[0], testExperts(4, 8), 2, Options{Slots: 8, TopK: 2}, StoreOptions{})
	defer closeCache(t, c)
	for _, x := range []struct {
		want string
		list [][]int32
	}{
		{"expert 8 of layer 1, which has 8", [][]int32{nil, {8}}},
		{"of 5 layers to be restored, there are 4", make([][]int32, 5)},
		{"in an arena of", [][]int32{nil, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}},
	} {
		if err := c.Restore(ctx, x.list); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v: %v, want %q", x.list, err, x.want)
		}
	}
	r, err := c.Begin(1, []int32{0})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := r.Next(ctx, true); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := c.Restore(ctx, nil); err == nil || !strings.Contains(err.Error(), "1 leases out") {
		t.Errorf("with a lease out: %v", err)
	}
	r.Close()
	if err := c.Restore(ctx, nil); err != nil {
		t.Error(err)
	}
	if n := c.Stats().Resident; n != 0 {
		t.Errorf("%d experts left, want 0", n)
	}
}
