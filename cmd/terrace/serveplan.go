package main

import (
	"path/filepath"
	"sync"

	"terrace/engine"
	"terrace/internal/host"
	"terrace/plan"
)

// servedPlan plans for the model that a server serves, with the context, the slots and the batch that it runs with, for
// GET /v1/plan. Graphics cards are left out: the process may be using one.
type servedPlan struct {
	e     env
	eng   *engine.Engine
	store string // the disk under the model; "" where there is none

	once  sync.Once
	shape plan.Shape
	err   error
}

// Plan implements server.Planner.
func (s *servedPlan) Plan(sizes []plan.Size) (p plan.Plan, here plan.Size, err error) {
	o := s.eng.Options()
	s.once.Do(func() { s.shape, s.err = engine.ShapeOf(s.eng.File(), o) })
	if s.err != nil {
		return p, here, s.err
	}
	shape := s.shape
	var profile plan.Profile
	if dir := cacheDir(s.e); dir != "" {
		shape.Curve = engine.CurveOf(s.eng.File(), dir, o.Log) // it is learned while the server runs
		if profile, err = plan.ReadProfile(filepath.Join(dir, "machine.json")); err != nil && o.Log != nil {
			o.Log.Debug("the machine profile is left out of a plan", "error", err)
		}
	}
	device, _ := host.Device(s.store) // some systems have none
	ram, _ := host.RAM()
	m := profile.Machine(device, ram.Total, o.Threads)
	if ram.Total > 0 { // what is available now says little: this process holds some of it
		here = plan.Size{RAM: ram.Total}
	}
	p, err = plan.Make(shape, m, sizes...)
	return p, here, err
}
