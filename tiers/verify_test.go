package tiers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// watchedCache is a cache over a verified store of files written by the test; evicting is easy, for it has few slots.
func watchedCache(t testing.TB, m maker, sums bool) (c *Cache, paths []string, experts [][]Desc) {
	t.Helper()
	experts = testExperts(3, 8)
	paths = writeModel(t, experts, 2)
	var sizes []int64
	for _, p := range paths {
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, st.Size())
	}
	var s *Sums
	var err error
	if sums {
		if s, err = MakeSums(context.Background(), paths, experts, nil); err != nil {
			t.Fatal(err)
		}
	}
	st, err := m.make(paths, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerify(st, paths, sizes, s)
	if err != nil {
		t.Fatal(err)
	}
	if v.Name() != st.Name() {
		t.Errorf("verified, %s is called %s", st.Name(), v.Name())
	}
	if c, err = NewCache(Options{Store: v, Experts: experts, Slots: 8, TopK: 4}); err != nil {
		t.Fatal(err)
	}
	return c, paths, experts
}

// TestFileChanged: each way to change a file under a running cache fails the reads after it, names everything, leaves
// what is in RAM usable, and a new file under the old name is none of them.
func TestFileChanged(t *testing.T) {
	for _, m := range fileStores(t) {
		for _, how := range []struct {
			name   string
			change func(path string) error
			fails  bool
		}{
			{"written", func(p string) error { // one byte, in place
				f, err := os.OpenFile(p, os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				_, err = f.WriteAt([]byte{1}, 10)
				return errors.Join(err, f.Close())
			}, true},
			{"copied over", func(p string) error {
				b, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				return os.WriteFile(p, bytes.Repeat([]byte{7}, len(b)), 0o644)
			}, true},
			{"longer", func(p string) error {
				f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					return err
				}
				_, err = f.Write([]byte("more"))
				return errors.Join(err, f.Close())
			}, true},
			{"cut", func(p string) error { return os.Truncate(p, 5000) }, true},
			{"renamed over", func(p string) error {
				if err := os.WriteFile(p+".new", make([]byte, 100000), 0o644); err != nil {
					return err
				}
				return os.Rename(p+".new", p)
			}, false},
			{"removed", os.Remove, false},
		} {
			t.Run(m.name+"/"+how.name, func(t *testing.T) {
				c, paths, _ := watchedCache(t, m, false)
				defer closeCache(t, c)
				if err := fetch(c, 1, []int32{0, 1}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond) // file times may be as coarse as the system's clock tick
				if err := how.change(paths[1]); err != nil {
					t.Fatal(err)
				}
				err := fetch(c, 1, []int32{4, 5})
				if !how.fails {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				var changed *ChangedError
				var short *ReadError
				switch {
				case errors.As(err, &changed):
					if changed.File != paths[1] || changed.ID.Layer != 1 || changed.Offset <= 0 || changed.Piece == "" {
						t.Errorf("%v", err)
					}
					if how.name == "longer" && changed.Size != changed.WasSize+4 || how.name == "written" && !changed.Time.After(changed.WasTime) {
						t.Errorf("%v", err)
					}
				case how.name == "cut" && errors.As(err, &short):
				default:
					t.Fatalf("got %v", err)
				}
				for _, w := range []string{paths[1], "layer 1", "offset"} {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%v: want %q in it", err, w)
					}
				}
				if err := fetch(c, 1, []int32{0, 1}); err != nil {
					t.Errorf("what is in RAM: %v", err)
				}
				if err := fetch(c, 1, []int32{6, 7}); err == nil {
					t.Error("a later read of the changed file was believed")
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				if err := c.v.check(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestSums: the first read of each expert is compared, a flipped bit anywhere in its bytes is found and told, a bit
// outside is not, and later reads are not compared again.
func TestSums(t *testing.T) {
	for _, m := range fileStores(t) {
		t.Run(m.name, func(t *testing.T) {
			c, paths, experts := watchedCache(t, m, true)
			defer func() { closeCache(t, c) }()
			v := c.store.(*verifier)
			all := []int32{0, 1, 2, 3, 4, 5, 6, 7}
			for range 3 { // through eight slots: each is read several times
				for l := 1; l < 3; l++ {
					if err := fetch(c, l, all); err != nil {
						t.Fatal(err)
					}
				}
			}
			var want int64
			for l := range experts {
				for e := range experts[l] {
					want += experts[l][e].Bytes()
				}
			}
			if got := v.bytes.Load(); got != want || c.Stats().DemandBytes < 2*want {
				t.Errorf("%d bytes compared, the experts have %d; %d read", got, want, c.Stats().DemandBytes)
			}
			// Damage before the file is opened.
			p := experts[1][3].Pieces[2]
			f, err := os.OpenFile(paths[p.Shard], os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, at := range []int64{p.Offset, p.Offset + p.Length - 1} {
				var b [1]byte
				if _, err := f.ReadAt(b[:], at); err != nil {
					t.Fatal(err)
				}
				b[0] ^= 0x10
				if _, err := f.WriteAt(b[:], at); err != nil {
					t.Fatal(err)
				}
				st, err := m.make(paths, StoreOptions{})
				if err != nil {
					t.Fatal(err)
				}
				w, err := NewVerify(st, paths, nil, v.sums)
				if err != nil {
					t.Fatal(err)
				}
				d, err := NewCache(Options{Store: w, Experts: experts, Slots: 8, TopK: 4})
				if err != nil {
					t.Fatal(err)
				}
				if err := fetch(d, 1, []int32{2, 4}); err != nil {
					t.Errorf("undamaged: %v", err)
				}
				var bad *SumError
				err = fetch(d, 1, []int32{3, 5})
				if !errors.As(err, &bad) || bad.ID != (ExpertID{1, 3}) || bad.Piece != "down" || bad.Offset != p.Offset || bad.File != paths[p.Shard] || bad.Wanted != v.sums.Pieces[1][3][2] || bad.Sum == bad.Wanted {
					t.Fatalf("damaged at %d: %v", at, err)
				}
				for _, x := range []string{"expert 3 of layer 1", "down", fmt.Sprint(p.Offset), fmt.Sprintf("%08x", bad.Sum), fmt.Sprintf("%08x", bad.Wanted)} {
					if !strings.Contains(err.Error(), x) {
						t.Errorf("%v: want %q in it", err, x)
					}
				}
				if err := fetch(d, 1, []int32{5}); err != nil {
					t.Errorf("after it: %v", err)
				}
				closeCache(t, d)
				b[0] ^= 0x10
				if _, err := f.WriteAt(b[:], at); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestSumsFile(t *testing.T) {
	experts := testExperts(3, 8)
	paths := writeModel(t, experts, 2)
	var done, total int64
	s, err := MakeSums(context.Background(), paths, experts, func(d, of int64) { done, total = d, of })
	if err != nil {
		t.Fatal(err)
	}
	if done != total || total == 0 {
		t.Errorf("progress ends at %d of %d", done, total)
	}
	for l := range experts { // against the bytes themselves
		for e := range experts[l] {
			for i, p := range experts[l][e].Pieces {
				b := make([]byte, p.Length)
				if err := fillPiece(&experts[l][e], i, b); err != nil {
					t.Fatal(err)
				}
				if got := s.Pieces[l][e][i]; got != sumOf(b) {
					t.Errorf("expert %d of layer %d, piece %d: %08x, want %08x", e, l, i, got, sumOf(b))
				}
			}
		}
	}
	s.Fingerprint = "abc"
	b, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := DecodeSums(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Fits("abc", experts); err != nil {
		t.Error(err)
	}
	if x, err := again.Encode(); err != nil || !bytes.Equal(x, b) {
		t.Errorf("not the same again: %v", err)
	}
	if err := again.Fits("other", experts); err == nil || !strings.Contains(err.Error(), "abc") || !strings.Contains(err.Error(), "other") {
		t.Errorf("another model: %v", err)
	}
	if err := again.Fits("abc", experts[:2]); err == nil {
		t.Error("fewer layers fit")
	}
	if err := again.Fits("abc", testExperts(3, 9)); err == nil {
		t.Error("more experts fit")
	}
	for i := range b {
		if _, err := DecodeSums(b[:i]); err == nil && i < len(b)-1 {
			t.Fatalf("cut to %d of %d bytes and accepted", i, len(b))
		}
		c := bytes.Clone(b)
		c[i] ^= 1
		if g, err := DecodeSums(c); err == nil {
			if e, _ := g.Encode(); !bytes.Equal(e, b) {
				t.Fatalf("byte %d changed and accepted", i)
			}
		}
	}
	for _, x := range []struct{ from, to string }{{`"version":1`, `"version":2`}, {`"crc32c","f`, `"sha1","f`}, {"terrace checksums", "terrace heat"}} {
		if _, err := DecodeSums(bytes.Replace(b, []byte(x.from), []byte(x.to), 1)); err == nil {
			t.Errorf("accepted with %s", x.to)
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := MakeSums(gone, paths, experts, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := MakeSums(context.Background(), []string{filepath.Join(t.TempDir(), "none"), paths[1]}, experts, nil); err == nil {
		t.Error("sums of a file that is not there")
	}
}

// TestVerifyRefuses: files that are gone, changed since their headers were read, or without checksums.
func TestVerifyRefuses(t *testing.T) {
	experts := testExperts(3, 8)
	paths := writeModel(t, experts, 2)
	s, err := NewPread(paths, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := NewVerify(s, []string{paths[0], paths[1] + "x"}, nil, nil); err == nil || !strings.Contains(err.Error(), paths[1]+"x") {
		t.Errorf("missing file: %v", err)
	}
	if _, err := NewVerify(s, paths, []int64{1, 2}, nil); err == nil || !strings.Contains(err.Error(), "had 1") {
		t.Errorf("another size: %v", err)
	}
	v, err := NewVerify(s, paths, nil, &Sums{Pieces: make([][][3]uint32, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Check(&experts[2][0]); err == nil || !strings.Contains(err.Error(), "no checksum") {
		t.Errorf("no checksum: %v", err)
	}
	if err := v.Check(&experts[1][0]); err == nil {
		t.Error("an expert without a checksum passes")
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// TestVerifyStress: cancelled and promoted reads find their way back through the verifier.
func TestVerifyStress(t *testing.T) {
	for _, m := range fileStores(t) {
		c, _, _ := watchedCache(t, m, true)
		var wg sync.WaitGroup
		for g := range 3 {
			wg.Go(func() {
				for i := range 60 {
					ids := []int32{int32((i + g) % 8), int32((i + g + 3) % 8)}
					c.Prefetch(1+i%2, ids)
					switch i % 3 {
					case 0:
						c.Settle(1+i%2, ids[:1])
					case 1:
						r, err := c.Begin(1+i%2, ids)
						if err != nil {
							t.Error(err)
							return
						}
						r.Close()
					default:
						if err := fetch(c, 1+i%2, ids); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		closeCache(t, c)
	}
}

// BenchmarkVerify is what looking at an expert's read costs: the question whether the file changed, and a checksum of a
// piece of 0.9 MB.
func BenchmarkVerify(b *testing.B) {
	experts := testExperts(3, 8)
	paths := writeModel(b, experts, 2)
	s, err := NewPread(paths, StoreOptions{})
	if err != nil {
		b.Fatal(err)
	}
	v, err := NewVerify(s, paths, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	b.Run("unchanged", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := v.(*verifier).unchanged(&experts[1][0]); err != nil {
				b.Fatal(err)
			}
		}
	})
	buf := bytes.Repeat([]byte("0123456789"), 90000)
	b.Run("sum", func(b *testing.B) {
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			sumOf(buf)
		}
	})
}

// TestVerifyAttach: a store that registers the memory of slots is told of it through the verifier too.
func TestVerifyAttach(t *testing.T) {
	c, _, experts := watchedCache(t, maker{"pread", func(paths []string, o StoreOptions) (Store, error) {
		s, err := NewPread(paths, o)
		return &attachCounter{Store: s}, err
	}}, false)
	defer closeCache(t, c)
	if err := fetch(c, 1, []int32{0, 1, 2}); err != nil {
		t.Fatal(err)
	}
	n := c.store.(*verifier).Store.(*attachCounter).attached
	if n < 3 {
		t.Errorf("told of %d slots of %d experts read, %d in all", n, 3, len(experts[1])+len(experts[2]))
	}
}

// attachCounter counts slots whose memory it was told of.
type attachCounter struct {
	Store
	attached int
}

func (a *attachCounter) Attach(int, []byte) { a.attached++ }
func (a *attachCounter) Detach(int)         {}
