package main

import (
	"terrace/doctor"
	"terrace/plan"
	"terrace/vulkan"
)

// cards lists this machine's graphics cards, for doctor and plans, with what calibrate measured about them.
func cards(p *plan.Profile) ([]doctor.Card, error) {
	all, err := vulkan.Devices()
	var list []doctor.Card
	for i := range all {
		d := &all[i]
		c := doctor.Card{Number: d.Number, Name: d.Name, Kind: d.Kind.String(), Memory: d.Memory, Refused: d.Refused, Lacks: d.Lacks}
		if g, ok := p.GPUs[d.Name]; ok {
			c.Rate = g.Memory
		}
		if d.Kind == vulkan.Software {
			c.Refused = "it computes on the CPU"
		}
		list = append(list, c)
	}
	return list, err
}

// thisGPU is the usable card with the most memory, nil where there is none.
func thisGPU(p *plan.Profile) *plan.GPU {
	list, err := cards(p)
	if err != nil {
		return nil
	}
	var best *doctor.Card
	for i := range list {
		if c := &list[i]; c.Refused == "" && (best == nil || c.Memory > best.Memory) {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	return p.Card(best.Name, best.Memory)
}
