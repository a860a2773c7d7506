package tiers

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unsafe"

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

// window is the most bytes that a walk through the layers needs at once: pair experts of each of two layers that follow
// one another, since a backend may still compute one while the next is fetched, and ahead guesses for each of the
// lookahead layers after these. The walk begins anew after the last layer.
func (z *slotSizes) window(counts func(l int) int, pair, lookahead, ahead int) int64 {
	var walk []int
	for l := range z.classOf {
		if z.classOf[l] >= 0 {
			walk = append(walk, l)
		}
	}
	most := int64(0)
	for i := range walk {
		var need int64
		for k := range 2 + lookahead {
			l, n := walk[(i+k)%len(walk)], pair
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
	need := z.window(counts, n.TopK, n.Lookahead, n.Guesses)
	need += int64(max(n.Sessions, 1)-1) * z.window(counts, n.TopK, 0, 0)
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
// 0.9 MB pieces costs 0.07-0.13 processor seconds per GB instead of 0.2-0.3 and runs up to three times as fast. But a huge
// page that two slots share takes memory for both and comes back only with the second. So a slot of a huge page or more
// is placed such that whole huge pages lie inside it, and its rest is on small ones:
//
//	      | huge page | huge page | huge page | huge page |
//	[rest |       slot 0          |        slot 1    | rest]
//
// Two slots lie back to back, which halves the number of mappings that the system keeps. Smaller slots lie side by side;
// there those that are in use from the start share huge pages, and where one of them leaves, its pages become small.
type Arena struct {
	space *host.Space
	slots [][]byte
	small []smallRun
}

// smallRun is the memory of a class of small slots.
type smallRun struct {
	first, last int32 // its slots
	huge        []byte
	split       []bool // huge pages of huge that were made small
}

// huge is the size of a huge page in bytes, 1 where there are none.
const huge = max(host.HugePage, 1)

// maxHugeMappings bounds the mappings that huge pages cost; Linux allows a process 65,530.
const maxHugeMappings = 40000

// newArena makes addresses for all slots; live[c] is how many slots of class c will be in use from the start, lowest
// numbers first.
func newArena(z *slotSizes, live []int32) (*Arena, error) {
	total := int64(huge)
	for _, k := range z.classes {
		if k.bytes > math.MaxInt64/4/int64(z.slots) || k.bytes > math.MaxInt/4/int64(z.slots) {
			return nil, fmt.Errorf("expert arena: %d slots of up to %d bytes are more than this machine can address", z.slots, k.bytes)
		}
		total += runBytes(k)
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
		if size < huge {
			run := smallRun{first: k.first, last: k.first + k.count - 1}
			for i := range int(k.count) {
				a.slots[int(k.first)+i] = space.Mem[at+i*size : at+(i+1)*size : at+(i+1)*size]
			}
			run.huge = space.Mem[at : at+int(live[c])*size/huge*huge]
			run.split = make([]bool, len(run.huge)/huge)
			if len(run.huge) > 0 {
				_ = host.AdviseHuge(run.huge)
			}
			a.small = append(a.small, run)
			at += int(runBytes(k))
			continue
		}
		rest := size % huge
		whole := size - rest
		for i := 0; i < int(k.count); i += 2 {
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

// runBytes is the addresses of a class.
func runBytes(k sizeClass) int64 {
	if k.bytes < huge {
		return (k.bytes*int64(k.count) + huge - 1) / huge * huge
	}
	return pairBytes(k) * int64((k.count+1)/2)
}

// Slot is the memory of slot i.
func (a *Arena) Slot(i int) []byte { return a.slots[i] }

// commit makes a slot usable.
func (a *Arena) commit(i int32) error { return a.space.Commit(a.slots[i]) }

// release gives a slot's memory back to the system.
func (a *Arena) release(i int32) error {
	for r := range a.small {
		run := &a.small[r]
		if i < run.first || i > run.last || len(run.huge) == 0 {
			continue
		}
		size := len(a.slots[i])
		from := int(i-run.first) * size / huge
		to := (int(i-run.first)*size + size - 1) / huge
		for h := from; h <= to && h < len(run.split); h++ {
			if !run.split[h] {
				run.split[h] = true
				_ = host.SplitHuge(run.huge[h*huge : (h+1)*huge])
			}
		}
	}
	return a.space.Release(a.slots[i])
}

// free returns everything. No slot may be in use.
func (a *Arena) free() error {
	err := a.space.Free()
	a.slots = nil
	return err
}
