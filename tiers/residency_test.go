package tiers

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"terrace/internal/host"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts give as what they should give")

// fakeMover stands for the store and the waiting sides: it writes down what it is told.
type fakeMover struct {
	v      *residency
	log    []string
	flying map[int32]Priority // slots whose read is neither done nor cancelled
	moving map[int32]bool     // of these, those that have begun
	woken  map[*request]bool
	memory map[int32]bool // slots that have memory
	held   int64          // its bytes
}

func (m *fakeMover) name(i int32) string {
	s := &m.v.slots[i]
	return fmt.Sprintf("%d/%d", s.layer, s.expert)
}

func (m *fakeMover) start(i int32, p Priority) {
	if _, twice := m.flying[i]; twice {
		panic("a slot is read into twice")
	}
	m.flying[i] = p
	m.log = append(m.log, fmt.Sprintf("read %s into %d (%s)", m.name(i), i, [...]string{"demand", "guess"}[p]))
}

func (m *fakeMover) promote(i int32) {
	if m.flying[i] == Guess {
		m.flying[i] = Demand
		m.log = append(m.log, "promote "+m.name(i))
	}
}

func (m *fakeMover) cancel(i int32) bool {
	if _, ok := m.flying[i]; !ok || m.moving[i] {
		return false
	}
	delete(m.flying, i)
	m.log = append(m.log, "cancel "+m.name(i))
	return true
}

func (m *fakeMover) begun(i int32) bool { return m.moving[i] }
func (m *fakeMover) wake(r *request)    { m.woken[r] = true }

// end finishes the read of a slot.
func (m *fakeMover) end(i int32, err error) {
	if _, ok := m.flying[i]; !ok {
		panic("a read ended that was not under way")
	}
	delete(m.flying, i)
	delete(m.moving, i)
	m.v.done(i, err)
}

func newFake(layers, experts, slots, topK, minSlots int, p policy) *fakeMover {
	m := &fakeMover{flying: map[int32]Priority{}, moving: map[int32]bool{}, woken: map[*request]bool{}, memory: map[int32]bool{}}
	size := make([][]int64, layers)
	for l := range size {
		for range experts {
			size[l] = append(size[l], 100)
		}
	}
	m.v = newResidency(size, slots, topK, minSlots, p, m)
	return m
}

// newMixed is newFake for layers whose slots have the given numbers of pages.
func newMixed(pages []int, experts int, target, least int64, topK int, p policy) *fakeMover {
	m := &fakeMover{flying: map[int32]Priority{}, moving: map[int32]bool{}, woken: map[*request]bool{}, memory: map[int32]bool{}}
	size, bytes, counts := make([][]int64, len(pages)), make([]int64, len(pages)), make([]int, len(pages))
	for l, n := range pages {
		bytes[l], counts[l] = int64(n)*page, experts
		for range experts {
			size[l] = append(size[l], bytes[l]-100)
		}
	}
	m.v = newSized(size, sizesOf(bytes, counts), target, least, topK, p, m)
	return m
}

// page is the size that slots are rounded up to.
var page = int64(max(host.PageSize(), host.IOAlign))

// attach and detach stand for the arena: memory in use stays within what is live.
func (m *fakeMover) attach(i int32) {
	if m.memory[i] {
		panic("a slot has memory twice")
	}
	m.memory[i] = true
	m.held += m.v.bytesOf(&m.v.slots[i])
	if m.held > m.v.room.live {
		panic(fmt.Sprintf("%d bytes of memory, %d live", m.held, m.v.room.live))
	}
}

func (m *fakeMover) detach(i int32) {
	if _, ok := m.flying[i]; ok || !m.memory[i] {
		panic("memory was given back that a read goes to or that was not there")
	}
	delete(m.memory, i)
	m.held -= m.v.bytesOf(&m.v.slots[i])
}

func sizes(layers, experts int) []int {
	s := make([]int, layers)
	for i := range s {
		s[i] = experts
	}
	return s
}

// TestScripts plays testdata/*.txt: a command, a line of dashes, what it gives, an empty line. Commands:
//
//	new layers=3 experts=8 slots=6 topk=2 min=4 halflife=64 [policy=lru]
//	begin A 0 1,2,3      prefetch 1 2,3      settle 1 2      pin 0/1 0/2
//	moves 0/1            done 0/1            fail 0/1
//	next A               release A 1         close A         show
//	new pages=2,3 ...    (layers of slots of so many pages; slots and min are pages then)
//	withdraw 1/2         resize 5            arena           (in pages, or slots where all are equal)
//	use 1 2,3            (a whole request)
//	decode 100 7         sweep               (walks of one sequence that end all reads; the number seeds its routing)
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			s := &script{open: map[string]*request{}}
			for block := range strings.SplitSeq(strings.TrimSpace(string(src)), "\n\n") {
				cmd, want, found := strings.Cut(block, "\n----")
				var body strings.Builder
				got := ""
				for line := range strings.Lines(cmd) {
					body.WriteString(line)
					if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
						got += s.do(line)
					}
				}
				if s.m != nil {
					if err := s.m.v.check(); err != nil {
						t.Fatalf("after %q: %v", cmd, err)
					}
				}
				if out.Len() > 0 {
					out.WriteString("\n")
				}
				out.WriteString(strings.TrimRight(body.String(), "\n"))
				if got != "" || found {
					out.WriteString("\n----\n" + got)
				} else {
					out.WriteString("\n")
				}
				if want = strings.TrimSpace(want); !*rewrite && want != strings.TrimSpace(got) {
					t.Errorf("%s\n---- got\n%s\n---- want\n%s", cmd, got, want)
				}
			}
			if *rewrite {
				if err := os.WriteFile(f, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// endAll ends the reads under way.
func (m *fakeMover) endAll() {
	for i := range m.v.slots {
		if _, ok := m.flying[int32(i)]; ok {
			m.end(int32(i), nil)
		}
	}
}

// decode walks tokens through the layers, each of which prefers some of its experts by a falling law, and counts what was
// resident when it was needed.
func (m *fakeMover) decode(tokens int, seed uint64) (hits, of int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var want []int32
	for range tokens {
		for l := range m.v.where {
			n := len(m.v.where[l])
			want = want[:0]
			for len(want) < m.v.topK {
				e := int32(math.Exp(rng.Float64()*math.Log(float64(n+1)))) - 1 // 0 most often
				e = (e*7 + int32(5*l)) % int32(n)                              // other favourites in each layer
				if !slices.Contains(want, e) {
					want = append(want, e)
				}
			}
			for _, e := range want {
				if m.v.state(l, int(e)) == Resident {
					hits++
				}
			}
			of += len(want)
			var r request
			m.v.begin(&r, l, want)
			m.endAll()
			for m.v.lease(&r) != nil {
			}
			m.v.close(&r)
		}
	}
	return hits, of
}

// sweep uses every expert of every layer, as a long prompt's batch does, and counts the reads.
func (m *fakeMover) sweep() (read int) {
	for l := range m.v.where {
		var all []int32
		for e := range m.v.where[l] {
			all = append(all, int32(e))
			if m.v.state(l, e) == Absent {
				read++
			}
		}
		var r request
		m.v.begin(&r, l, all)
		for r.left > 0 {
			m.endAll()
			var out []*item
			for it := m.v.lease(&r); it != nil; it = m.v.lease(&r) {
				out = append(out, it)
			}
			for _, it := range out {
				m.v.release(it)
			}
		}
		m.v.close(&r)
	}
	return read
}

type script struct {
	m    *fakeMover
	open map[string]*request
}

func (s *script) do(line string) (out string) {
	w := strings.Fields(line)
	num := func(x string) int {
		n, err := strconv.Atoi(x)
		if err != nil {
			panic(fmt.Sprintf("%q: %v", line, err))
		}
		return n
	}
	list := func(i int) (ns []int32) {
		if i < len(w) {
			for x := range strings.SplitSeq(w[i], ",") {
				ns = append(ns, int32(num(x)))
			}
		}
		return ns
	}
	id := func(x string) ExpertID {
		a, b, _ := strings.Cut(x, "/")
		return ExpertID{uint16(num(a)), uint16(num(b))}
	}
	slotOf := func(x string) int32 { return s.m.v.where[id(x).Layer][id(x).Expert] }
	if w[0] == "new" {
		o := map[string]int{"halflife": 64}
		lruPolicy := false
		var pages []int
		for _, x := range w[1:] {
			k, v, _ := strings.Cut(x, "=")
			if k == "pages" {
				for n := range strings.SplitSeq(v, ",") {
					pages = append(pages, num(n))
				}
				o["layers"] = len(pages)
				continue
			}
			if k == "policy" {
				lruPolicy = v == "lru"
				continue
			}
			o[k] = num(v)
		}
		var p policy = newEWMA(sizes(o["layers"], o["experts"]), o["halflife"])
		if lruPolicy {
			p = newLRU(sizes(o["layers"], o["experts"]))
		}
		if pages != nil {
			s.m = newMixed(pages, o["experts"], int64(o["slots"])*page, int64(o["min"])*page, o["topk"], p)
		} else {
			s.m = newFake(o["layers"], o["experts"], o["slots"], o["topk"], o["min"], p)
		}
		s.open = map[string]*request{}
		return ""
	}
	m := s.m
	m.log = nil
	evicted := m.v.n.evictions
	answer := ""
	switch w[0] {
	case "begin":
		r := &request{}
		s.open[w[1]] = r
		m.v.begin(r, num(w[2]), list(3))
	case "prefetch":
		answer = fmt.Sprintf("%d reads queued", m.v.prefetch(num(w[1]), list(2)))
	case "settle":
		answer = fmt.Sprintf("%+v", m.v.settle(num(w[1]), list(2)))
	case "pin":
		var ids []ExpertID
		for _, x := range w[1:] {
			ids = append(ids, id(x))
		}
		answer = fmt.Sprintf("%d pinned", m.v.pin(ids))
	case "withdraw":
		answer = fmt.Sprintf("cancelled: %v", m.v.withdraw(int(id(w[1]).Layer), int32(id(w[1]).Expert)))
	case "resize":
		m.v.setTarget(int64(num(w[1])) * page)
		for m.v.over() {
			m.v.trim(trimStep)
		}
		answer = fmt.Sprintf("%d live", m.v.room.live/page)
	case "arena":
		answer = fmt.Sprintf("target %d, live %d, with memory %d", m.v.room.target/page, m.v.room.live/page, m.held/page)
	case "counts":
		n := &m.v.n
		answer = fmt.Sprintf("issued %d, used %d, late %d, wasted %d, cancelled %d", n.guessed, n.used, n.late, n.wasted, n.cancelled)
	case "use":
		r := &request{}
		m.v.begin(r, num(w[1]), list(2))
		m.endAll()
		for m.v.lease(r) != nil {
		}
		m.v.close(r)
		return ""
	case "decode":
		hits, of := m.decode(num(w[1]), uint64(num(w[2])))
		answer = fmt.Sprintf("%d of %d resident, %.1f %%", hits, of, 100*float64(hits)/float64(of))
		m.log = nil
		return answer + "\n"
	case "sweep":
		answer = fmt.Sprintf("%d read", m.sweep())
		m.log = nil
		return answer + "\n"
	case "moves":
		m.moving[slotOf(w[1])] = true
	case "done":
		m.end(slotOf(w[1]), nil)
	case "fail":
		m.end(slotOf(w[1]), errors.New("disk"))
	case "next":
		r := s.open[w[1]]
		if it := m.v.lease(r); it != nil {
			answer = fmt.Sprintf("%d in slot %d", it.expert, it.slot)
		} else {
			answer = fmt.Sprintf("nothing, %d left, error %v", r.left, r.err)
		}
	case "release":
		r := s.open[w[1]]
		i := slices.IndexFunc(r.items, func(it item) bool { return int(it.expert) == num(w[2]) })
		m.v.release(&r.items[i])
	case "close":
		m.v.close(s.open[w[1]])
		delete(s.open, w[1])
	case "show":
		for i := range m.v.slots {
			x := &m.v.slots[i]
			if x.state == slotDead {
				continue
			}
			if x.state == slotEmpty {
				answer += fmt.Sprintf("slot %d: empty\n", i)
				continue
			}
			answer += fmt.Sprintf("slot %d: %s %v", i, m.name(int32(i)), m.v.state(int(x.layer), int(x.expert)))
			for _, f := range []struct {
				on   bool
				what string
			}{{x.refs > 0, fmt.Sprint(", leased ", x.refs)}, {x.wants > 0, fmt.Sprint(", wanted ", x.wants)}, {x.guess, ", guessed"}, {x.pinned, ", pinned"}} {
				if f.on {
					answer += f.what
				}
			}
			answer += "\n"
		}
	default:
		panic("what is " + line)
	}
	if n := m.v.n.evictions - evicted; n > 0 {
		m.log = append(m.log, fmt.Sprintf("evicted %d", n))
	}
	if answer = strings.TrimSpace(answer); answer != "" {
		m.log = append(m.log, answer)
	}
	if len(m.log) == 0 {
		return ""
	}
	return strings.Join(m.log, "\n") + "\n"
}

// naive is the cache's rule for one sequence, as plainly as it can be said: scores are recomputed from the whole history
// with a half-life of one visit, where they are whole numbers.
type naive struct {
	layers, experts, slots, topK int
	visits                       []int
	latest                       []int // number of the visit of any layer, by layer
	clock                        int
	uses                         map[ExpertID][]int // visit numbers of its uses
	in                           map[ExpertID]bool  // true: guessed
}

// score compares two histories: uses at later visits weigh more than all earlier ones together, so the latest visit that
// only one of them has decides.
func (n *naive) less(a, b ExpertID) int {
	x, y := n.uses[a], n.uses[b]
	i, j := len(x)-1, len(y)-1
	for ; i >= 0 && j >= 0; i, j = i-1, j-1 {
		if c := cmp.Compare(x[i], y[j]); c != 0 {
			return c
		}
	}
	return cmp.Compare(i, j)
}

func (n *naive) evict(keep map[ExpertID]bool) (ExpertID, bool) {
	var best ExpertID
	found := false
	for id, guessed := range n.in {
		if guessed || keep[id] {
			continue
		}
		if found {
			c := n.less(id, best)
			if c == 0 {
				c = cmp.Compare(n.latest[best.Layer], n.latest[id.Layer])
			}
			if c == 0 {
				c = cmp.Compare(id.Expert, best.Expert)
			}
			if c >= 0 {
				continue
			}
		}
		best, found = id, true
	}
	if found {
		delete(n.in, best)
	}
	return best, found
}

// TestAgainstNaive plays random walks of one sequence on residency and on the naive rule; both must hold the same experts
// after every step.
func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers := rapid.IntRange(1, 4).Draw(t, "layers")
		experts := rapid.IntRange(3, 8).Draw(t, "experts")
		topK := rapid.IntRange(1, 3).Draw(t, "topK")
		guesses := rapid.IntRange(0, 2).Draw(t, "guesses")
		slots := MinSlots(topK, 1, guesses) + rapid.IntRange(0, 8).Draw(t, "more")
		m := newFake(layers, experts, slots, topK, MinSlots(topK, 1, guesses), newEWMA(sizes(layers, experts), 1))
		n := &naive{layers: layers, experts: experts, slots: slots, topK: topK, visits: make([]int, layers), latest: make([]int, layers),
			uses: map[ExpertID][]int{}, in: map[ExpertID]bool{}}
		all := make([]int32, experts)
		for i := range all {
			all[i] = int32(i)
		}
		finish := func() {
			for i := range m.v.slots {
				if _, ok := m.flying[int32(i)]; ok {
					m.end(int32(i), nil)
				}
			}
		}
		for turn := range rapid.IntRange(1, 12).Draw(t, "turns") {
			for l := range layers {
				want := rapid.Permutation(all).Draw(t, "want")[:topK]
				m.v.settle(l, want)
				for id := range n.in {
					if int(id.Layer) == l {
						n.in[id] = false
					}
				}
				n.clock++
				n.latest[l] = n.clock
				keep := map[ExpertID]bool{}
				for _, e := range want {
					id := ExpertID{uint16(l), uint16(e)}
					keep[id] = true
					n.uses[id] = append(n.uses[id], turn)
				}
				for _, e := range want {
					id := ExpertID{uint16(l), uint16(e)}
					if _, ok := n.in[id]; !ok {
						if len(n.in) == slots {
							if _, ok := n.evict(keep); !ok {
								t.Fatal("no victim in the naive rule")
							}
						}
						n.in[id] = false
					}
				}
				var r request
				m.v.begin(&r, l, want)
				if guesses > 0 && l+1 < layers {
					guess := rapid.Permutation(all).Draw(t, "guess")[:guesses]
					m.v.prefetch(l+1, guess)
					protected := 0
					for _, g := range n.in {
						if g {
							protected++
						}
					}
					for _, e := range guess {
						id := ExpertID{uint16(l + 1), uint16(e)}
						if slots < layers*experts && protected >= slots-2*topK {
							break
						}
						g, ok := n.in[id]
						if !ok && len(n.in) == slots {
							if _, found := n.evict(keep); !found {
								break
							}
						}
						if !g {
							protected++
						}
						n.in[id] = true
					}
				}
				if err := m.v.check(); err != nil {
					t.Fatal(err)
				}
				finish()
				got := map[int32]bool{}
				for it := m.v.lease(&r); it != nil; it = m.v.lease(&r) {
					got[it.expert] = true
				}
				if len(got) != topK {
					t.Fatalf("%d experts handed out, want %v", len(got), want)
				}
				m.v.close(&r)
				for id := range n.in {
					if m.v.where[id.Layer][id.Expert] < 0 {
						t.Fatalf("turn %d, layer %d: %v is missing; naive %v", turn, l, id, n.in)
					}
				}
				if have := m.v.liveSlots() - len(m.v.room.lists[0].free); have != len(n.in) {
					t.Fatalf("turn %d, layer %d: %d experts, naive %d", turn, l, have, len(n.in))
				}
				if err := m.v.check(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestProgress opens random requests, guesses and pins, ends reads in any order, well or badly, and checks after every
// step that the tables agree and that leased slots keep their expert; in the end every request gets everything, however
// few the slots.
func TestProgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const layers, experts = 3, 8
		topK := rapid.IntRange(1, 3).Draw(t, "topK")
		pages := rapid.SliceOfN(rapid.IntRange(1, 4), layers, layers).Draw(t, "pages")
		bytes := make([]int64, layers)
		for l, n := range pages {
			bytes[l] = int64(n) * page
		}
		z := sizesOf(bytes, sizes(layers, experts))
		least := z.min(func(int) int { return experts }, Need{TopK: topK})
		target := func() int64 { return least + int64(rapid.IntRange(0, 20).Draw(t, "more"))*page }
		m := newMixed(pages, experts, target(), least, topK, newEWMA(sizes(layers, experts), 4))
		all := make([]int32, experts)
		for i := range all {
			all[i] = int32(i)
		}
		type holder struct {
			r      *request
			leases []*item
		}
		var open []*holder
		some := func(most int) []int32 {
			return rapid.Permutation(all).Draw(t, "experts")[:rapid.IntRange(0, most).Draw(t, "count")]
		}
		layer := func() int { return rapid.IntRange(0, layers-1).Draw(t, "layer") }
		flying := func() (out []int32) {
			for i := range m.v.slots {
				if _, ok := m.flying[int32(i)]; ok {
					out = append(out, int32(i))
				}
			}
			return out
		}
		check := func() {
			if err := m.v.check(); err != nil {
				t.Fatal(err)
			}
			if m.held > m.v.room.live {
				t.Fatalf("%d bytes of memory, %d live", m.held, m.v.room.live)
			}
			for _, h := range open {
				for _, it := range h.leases {
					s := &m.v.slots[it.slot]
					if s.state != slotReady || int(s.layer) != h.r.layer || s.expert != it.expert {
						t.Fatalf("a leased slot changed: %+v", s)
					}
				}
			}
		}
		// A holder with nothing ready gives its leases back before it waits, unless it is small: that is the contract.
		step := func(h *holder) {
			if it := m.v.lease(h.r); it != nil {
				h.leases = append(h.leases, it)
				return
			}
			if len(h.r.items) <= topK && h.r.left > 0 {
				return
			}
			for _, it := range h.leases {
				m.v.release(it)
			}
			h.leases = nil
		}
		drop := func(i int) {
			m.v.close(open[i].r)
			open = slices.Delete(open, i, i+1)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "op") {
			case 10:
				m.v.setTarget(target())
				if rapid.Bool().Draw(t, "trim") { // or others come in between, as in the cache
					for m.v.over() {
						m.v.trim(trimStep)
					}
				}
			case 11:
				m.v.withdraw(layer(), int32(rapid.IntRange(0, experts-1).Draw(t, "guess")))
			case 0:
				if len(open) < 6 {
					most := topK
					if rapid.Bool().Draw(t, "large") {
						most = experts
					}
					h := &holder{r: &request{}}
					open = append(open, h)
					m.v.begin(h.r, layer(), some(most))
				}
			case 1:
				m.v.prefetch(layer(), some(experts))
			case 2:
				m.v.settle(layer(), some(topK))
			case 3:
				var ids []ExpertID
				for _, e := range some(experts) {
					ids = append(ids, ExpertID{uint16(layer()), uint16(e)})
				}
				m.v.pin(ids)
			case 4, 5:
				if f := flying(); len(f) > 0 {
					var err error
					if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
						err = errors.New("disk")
					}
					m.end(rapid.SampledFrom(f).Draw(t, "read"), err)
				}
			case 6:
				if f := flying(); len(f) > 0 {
					m.moving[rapid.SampledFrom(f).Draw(t, "read")] = true
				}
			case 7:
				if len(open) > 0 {
					drop(rapid.IntRange(0, len(open)-1).Draw(t, "request"))
				}
			default:
				if len(open) > 0 {
					step(rapid.SampledFrom(open).Draw(t, "request"))
				}
			}
			check()
		}
		for rounds := 0; len(open) > 0; rounds++ {
			if rounds > 10000 {
				t.Fatalf("%d requests never end", len(open))
			}
			for _, i := range flying() {
				if _, still := m.flying[i]; still {
					m.end(i, nil)
				}
			}
			for i := len(open) - 1; i >= 0; i-- {
				if open[i].r.left == 0 || open[i].r.err != nil {
					drop(i)
				} else {
					step(open[i])
				}
			}
			check()
		}
		if m.v.leases != 0 || m.v.streamer != nil || m.v.waiting.head != nil {
			t.Fatalf("%d leases, streaming %v, waiting %v", m.v.leases, m.v.streamer, m.v.waiting.head)
		}
		for _, i := range flying() {
			m.end(i, nil)
		}
		for m.v.over() {
			m.v.trim(trimStep)
		}
		check()
		if m.v.room.live > m.v.room.target {
			t.Fatalf("%d bytes live, nothing in use, target %d", m.v.room.live, m.v.room.target)
		}
		if n := &m.v.n; n.guessed != n.used+n.late+n.wasted+n.cancelled+countIssued(m.v) || n.guessedBytes-n.usedBytes-n.lateBytes-n.wastedBytes-n.cancelB < 0 {
			t.Fatalf("guesses do not balance: %+v, %d open", n, countIssued(m.v))
		}
	})
}

// TestEWMA: a use weighs half after a half-life, for thousands of half-lives, and scaling keeps the order.
func TestEWMA(t *testing.T) {
	p := newEWMA([]int{3, 1}, 2)
	for range 5000 {
		p.visit(0)
		p.touch(0, 0)
		if p.visit(0); p.latest%4 == 0 {
			p.touch(0, 1)
		}
		p.rescale()
		if a, b, c := p.score(0, 0), p.score(0, 1), p.score(0, 2); !(a > b) || c != 0 || a > 1e300 {
			t.Fatalf("after %d visits: %g, %g, %g", p.latest, a, b, c)
		}
	}
	// A layer that was passed over for long lags by a quarter of the half-life when it comes back, no more.
	l := newEWMA([]int{1, 1}, 8)
	for range 100 {
		l.visit(0)
	}
	l.visit(1)
	l.touch(0, 0)
	l.touch(1, 0)
	if got, want := l.score(1, 0)/l.score(0, 0), math.Exp2(-2.0/8); math.Abs(got-want) > 1e-15 {
		t.Errorf("a use in the layer that lags weighs %g of another, want %g", got, want)
	}
	q := newEWMA([]int{2}, 64)
	q.visit(0)
	q.touch(0, 0)
	for range 64 {
		q.visit(0)
	}
	q.touch(0, 1)
	if a, b := q.score(0, 0), q.score(0, 1); b != 2*a {
		t.Errorf("scores %g and %g; the second should be twice the first", a, b)
	}
}
