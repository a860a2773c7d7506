package tiers

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"terrace/internal/fault"
	"terrace/internal/host"
)

// slotSizes says what slots a model's experts need. All experts of a layer take slots of one size: they are rows of the same
// tensors and differ by the blocks around them alone. Layers whose sizes are nearly equal share one.
type slotSizes struct {
	classOf []int32 // of each layer, -1 without experts
	classes []sizeClass
	slots   int   // one for every expert
	bytes   int64 // of all these
}

// sizeClass is one size of slot.
type sizeClass struct {
	bytes int64 // of a slot, whole pages
	first int32 // number of its first slot; they are numbered class by class
	count int32 // of its slots: one for every expert of its layers
}

// nearly is the size, in per cent of the largest of a class, from which on a layer joins it: a slot of its own size would
// save less than it costs when slots change hands.
const nearly = 98

// sizesOf takes the bytes that the largest expert of each layer needs, 0 for a layer without experts, and their number.
func sizesOf(bytes []int64, counts []int) slotSizes {
	page := int64(max(host.PageSize(), host.IOAlign))
	z := slotSizes{classOf: make([]int32, len(bytes))}
	order := make([]int, 0, len(bytes))
	for l := range bytes {
		z.classOf[l] = -1
		if counts[l] > 0 {
			order = append(order, l)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(bytes[b], bytes[a]) })
	for _, l := range order {
		b := (bytes[l] + page - 1) / page * page
		n := len(z.classes)
		if n == 0 || b*100 < z.classes[n-1].bytes*nearly {
			z.classes = append(z.classes, sizeClass{bytes: b, first: int32(z.slots)})
			n++
		}
		z.classOf[l] = int32(n - 1)
		z.classes[n-1].count += int32(counts[l])
		z.slots += counts[l]
		z.bytes += int64(counts[l]) * z.classes[n-1].bytes
	}
	return z
}

// sizesOfExperts is sizesOf for descriptions ([layer][expert]).
func sizesOfExperts(experts [][]Desc) slotSizes {
	bytes, counts := make([]int64, len(experts)), make([]int, len(experts))
	for l := range experts {
		counts[l] = len(experts[l])
		for e := range experts[l] {
			bytes[l] = max(bytes[l], int64(layoutOf(&experts[l][e]).bytes))
		}
	}
	return sizesOf(bytes, counts)
}

// layer is the size of a slot of a layer in bytes, 0 without experts.
func (z *slotSizes) layer(l int) int64 {
	if z.classOf[l] < 0 {
		return 0
	}
	return z.classes[z.classOf[l]].bytes
}

// walk is the most bytes that a walk through the layers needs at once: pair experts of each of two layers that follow
// one another, since a backend may still compute one while the next is fetched, and ahead guesses for each of the
// lookahead layers after these. The walk begins anew after the last layer.
func (z *slotSizes) walk(counts func(l int) int, pair, lookahead, ahead int) int64 {
	var with []int
	for l := range z.classOf {
		if z.classOf[l] >= 0 {
			with = append(with, l)
		}
	}
	most := int64(0)
	for i := range with {
		var need int64
		for k := range 2 + lookahead {
			l, n := with[(i+k)%len(with)], pair
			if k >= 2 {
				n = ahead
			}
			need += int64(min(n, counts(l))) * z.layer(l)
		}
		most = max(most, need)
	}
	return most
}

// MinSlots is the smallest working set in slots: two layers' experts, because a backend may still compute one while the
// next is fetched, and the guesses, which are held until their layer settles.
func MinSlots(topK, lookahead, guesses int) int { return 2*topK + lookahead*guesses }

// Need says what a cache is to be used for; the smallest arena follows from it.
type Need struct {
	TopK      int // experts a token uses in a layer
	Lookahead int // layers guessed ahead
	Guesses   int // experts guessed for a layer
	Sessions  int // sequences that use the cache at the same time; 1 when 0
}

// MinBytes is the smallest arena in bytes for these experts ([layer][expert]): MinSlots slots of the layers in a row that
// need most, and two layers' experts for each further sequence; never more than a slot for every expert.
func MinBytes(experts [][]Desc, n Need) int64 {
	z := sizesOfExperts(experts)
	return z.min(func(l int) int { return len(experts[l]) }, n)
}

func (z *slotSizes) min(counts func(l int) int, n Need) int64 {
	need := z.walk(counts, n.TopK, n.Lookahead, n.Guesses)
	need += int64(max(n.Sessions, 1)-1) * z.walk(counts, n.TopK, 0, 0)
	return min(need, z.bytes)
}

// ArenaBytes is the arena in bytes that has slots for so many of these experts in the mix of their sizes, and for all of
// them when there are no more.
func ArenaBytes(experts [][]Desc, slots int) int64 {
	z := sizesOfExperts(experts)
	return z.share(slots)
}

// share is the bytes of slots slots, by each class's part of all.
func (z *slotSizes) share(slots int) int64 {
	if slots >= z.slots {
		return z.bytes
	}
	var sum int64
	for c := range z.classes {
		k := &z.classes[c]
		sum += (int64(slots)*int64(k.count)*k.bytes + int64(z.slots) - 1) / int64(z.slots)
	}
	return sum
}

// SlotBytes is the size in bytes of a slot that holds any of the experts ([layer][expert]): the largest one with the
// blocks around its pieces.
func SlotBytes(experts [][]Desc) int {
	z := sizesOfExperts(experts)
	if len(z.classes) == 0 {
		return 0
	}
	return int(z.classes[0].bytes)
}

// Arena is addresses for a slot for every expert, outside the Go heap. Only slots in use take memory, so that the arena
// can shrink and grow, and trade slots of one size for slots of another, while it runs.
//
// Huge pages: direct reads into memory that is not registered pin its pages one by one, and with huge pages a read of
// 0.9 MB pieces costs 0.07-0.13 processor seconds per GB instead of 0.2-0.3 and runs up to three times as fast; and weights
// on small pages cost a walk of the page table for every 4 KiB that decode reads. But a huge page that two slots share
// takes memory for both and comes back only with the second. So the slots of a class that are in use from the start lie
// side by side on huge pages throughout, and where one of them leaves, the huge pages it shares become small for good. A
// slot that comes into use later and is as large as a huge page is placed such that whole ones lie inside it, its rest on
// small ones:
//
//	      | huge page | huge page | huge page | huge page |
//	[rest |       slot 0          |        slot 1    | rest]
//
// Two such slots lie back to back, which halves the number of mappings that the system keeps.
type Arena struct {
	space *host.Space
	slots [][]byte
	runs  []run
	warm  *warmer // nil: pages get their memory when a read touches them
}

// run is the memory of a class's slots that lie side by side.
type run struct {
	first, last int32 // its slots
	huge        []byte
	split       []bool // huge pages of huge that were made small
}

// huge is the size of a huge page in bytes, 1 where there are none.
const huge = max(host.HugePage, 1)

// maxHugeMappings bounds the mappings that huge pages cost; Linux allows a process 65,530.
const maxHugeMappings = 40000

// NewArena makes slots equal slots of slotBytes bytes each, all in use, for those who read without a cache.
func NewArena(slots, slotBytes int) (*Arena, error) {
	if slots < 1 || slotBytes < 1 {
		panic(fmt.Sprintf("tiers: an arena of %d slots of %d bytes; both must be positive", slots, slotBytes))
	}
	z := sizesOf([]int64{int64(slotBytes)}, []int{slots})
	a, err := newArena(&z, []int32{int32(slots)})
	for i := int32(0); err == nil && i < int32(slots); i++ {
		if err = a.commit(i); err != nil {
			_ = a.Free()
		}
	}
	return a, err
}

// newArena makes addresses for all slots; live[c] is how many slots of class c will be in use from the start, lowest
// numbers first.
func newArena(z *slotSizes, live []int32) (*Arena, error) {
	total := int64(huge)
	for c, k := range z.classes {
		if k.bytes > math.MaxInt64/4/int64(z.slots) || k.bytes > math.MaxInt/4/int64(z.slots) {
			return nil, fmt.Errorf("expert arena: %d slots of up to %d bytes are more than this machine can address", z.slots, k.bytes)
		}
		total += sideBytes(k, live[c]) + pairsBytes(k, live[c])
	}
	space, err := host.Reserve(int(total))
	if err != nil {
		return nil, fmt.Errorf("expert arena of %d slots: %w", z.slots, err)
	}
	a := &Arena{space: space, slots: make([][]byte, z.slots)}
	_ = host.AdviseSmall(space.Mem) // advice only, all of it
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(space.Mem))) % huge)
	mappings := 0
	for c, k := range z.classes {
		size := int(k.bytes)
		if n := runSlots(k, live[c]); n > 0 {
			for i := range n {
				a.slots[int(k.first)+i] = space.Mem[at+i*size : at+(i+1)*size : at+(i+1)*size]
			}
			dense := space.Mem[at : at+int(live[c])*size/huge*huge]
			if len(dense) > 0 {
				_ = host.AdviseHuge(dense)
				a.runs = append(a.runs, run{first: k.first, last: k.first + int32(n) - 1, huge: dense, split: make([]bool, len(dense)/huge)})
			}
			at += int(sideBytes(k, live[c]))
		}
		rest := size % huge
		whole := size - rest
		for i := runSlots(k, live[c]); i < int(k.count); i += 2 {
			middle := at + huge + whole
			if rest == 0 {
				middle = at + whole
			}
			a.slots[int(k.first)+i] = space.Mem[middle-size : middle : middle]
			end := middle
			if i+1 < int(k.count) {
				a.slots[int(k.first)+i+1] = space.Mem[middle : middle+size : middle+size]
				end += whole
			}
			if mappings += 2; mappings < maxHugeMappings {
				_ = host.AdviseHuge(space.Mem[middle-whole : end])
			}
			at += int(pairBytes(k))
		}
	}
	return a, nil
}

// pairBytes is the addresses of two slots that lie back to back.
func pairBytes(k sizeClass) int64 {
	whole := k.bytes / huge * huge
	if whole == k.bytes {
		return 2 * whole
	}
	return 2*whole + 2*huge
}

// runSlots is how many slots of a class lie side by side: those in use from the start, and all where none can hold a huge
// page of its own.
func runSlots(k sizeClass, live int32) int {
	if k.bytes < huge {
		return int(k.count)
	}
	return int(live)
}

// sideBytes is the addresses of the slots that lie side by side.
func sideBytes(k sizeClass, live int32) int64 {
	return (k.bytes*int64(runSlots(k, live)) + huge - 1) / huge * huge
}

// pairsBytes is the addresses of the others.
func pairsBytes(k sizeClass, live int32) int64 {
	return pairBytes(k) * int64((int(k.count)-runSlots(k, live)+1)/2)
}

// Slot is the memory of slot i.
func (a *Arena) Slot(i int) []byte { return a.slots[i] }

// commit makes a slot usable.
func (a *Arena) commit(i int32) error {
	if fault.On {
		if err := fault.Memory(int64(len(a.slots[i]))); err != nil {
			return err
		}
	}
	if a.warm != nil {
		r := a.runOf(i)
		if r >= 0 && int(i-a.runs[r].first)*len(a.slots[i]) < len(a.runs[r].huge) {
			a.warm.used(r, int(i-a.runs[r].first+1)*len(a.slots[i]))
		} else {
			a.warm.retreat(a.space.Release)
		}
	}
	return a.space.Commit(a.slots[i])
}

// runOf is the run that slot i lies in, or -1.
func (a *Arena) runOf(i int32) int {
	for r := range a.runs {
		if i >= a.runs[r].first && i <= a.runs[r].last {
			return r
		}
	}
	return -1
}

// release gives a slot's memory back to the system.
func (a *Arena) release(i int32) error {
	if a.warm != nil {
		a.warm.retreat(a.space.Release)
	}
	if r := a.runOf(i); r >= 0 {
		run := &a.runs[r]
		size := len(a.slots[i])
		begin := int(i-run.first) * size
		for h := begin / huge; h*huge < begin+size && h < len(run.split); h++ {
			if shared := h*huge < begin || (h+1)*huge > begin+size; shared && !run.split[h] {
				run.split[h] = true
				_ = host.SplitHuge(run.huge[h*huge : (h+1)*huge])
			}
		}
	}
	return a.space.Release(a.slots[i])
}

// Free returns everything. No slot may be in use.
func (a *Arena) Free() error {
	if a.warm != nil {
		a.warm.stop()
	}
	err := a.space.Free()
	a.slots = nil
	return err
}
