package tiers

// Sweeps: a prompt's batch uses most experts of every layer once. That tells little about which of them decode will want,
// and counted at once it would do harm: experts of the layers already swept would score one use more than those of the
// layers still to come, and push out what decode had used. So the uses of a sweep are counted when it is over: when the
// next one begins, or when decode has gone on for two walks through the layers. Until then what a sweep brought in scores
// as it did before, mostly little, and is the first to make room for the rest of the sweep.

// sweep holds uses that are not counted yet.
type sweep struct {
	uses  [][]int32 // by layer
	any   bool
	quiet int // requests since the last of the sweep
}

func (s *sweep) init(layers int) { s.uses = make([][]int32, layers) }

// sweeps says whether a request is part of a sweep, and notes its uses then.
func (v *residency) sweeps(layer int, experts []int32) bool {
	s := &v.sweep
	if len(experts) <= v.topK || 2*len(experts) <= len(v.where[layer]) {
		if s.any {
			if s.quiet++; s.quiet > 2*len(v.where) {
				v.countSweep()
			}
		}
		return false
	}
	if len(s.uses[layer]) > 0 {
		v.countSweep()
	}
	s.any, s.quiet = true, 0
	s.uses[layer] = append(s.uses[layer], experts...)
	return true
}

// countSweep counts what was noted.
func (v *residency) countSweep() {
	s := &v.sweep
	for layer, used := range s.uses {
		if len(used) == 0 {
			continue
		}
		v.visit(layer)
		for _, e := range used {
			v.policy.touch(layer, int(e))
		}
		s.uses[layer] = used[:0]
	}
	s.any = false
	v.reheap()
}

// visit tells the policy that a layer is about to use experts.
func (v *residency) visit(layer int) {
	v.policy.visit(layer)
	if v.policy.rescale() {
		v.reheap()
	}
}
