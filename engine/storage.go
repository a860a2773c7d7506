package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"terrace/internal/fault"
	"terrace/internal/host"
	"terrace/plan"
	"terrace/tiers"
)

// probeLeast, which tests lower, is the size of files below which the disk is not measured: reading them all takes no longer than that.
var probeLeast int64 = 1 << 30

// probeTime, which tests lower, is how long the disk is measured.
var probeTime = 3 * time.Second

// unsettledFor is how long a measurement counts that ended before the rate stood still: somebody may have been copying the model
// just then, and the store chosen beside that is not the one for a quiet disk.
const unsettledFor = time.Hour

// openStore opens what brings experts from the model's files and looks at them, as the options say.
func (e *Engine) openStore() (tiers.Store, error) {
	paths := make([]string, len(e.file.Shards))
	for i, s := range e.file.Shards {
		paths[i] = s.Path
	}
	kind := e.opt.Store
	auto := kind == "auto"
	if auto {
		kind = e.bestStore(paths)
	}
	open := func(paths []string, copies bool) (st tiers.Store, err error) {
		switch {
		case kind == "pread":
			st, err = tiers.NewPread(paths, tiers.StoreOptions{})
		case kind == "mmap":
			st, err = tiers.NewMmap(paths, tiers.StoreOptions{})
		case auto:
			st, err = tiers.NewAuto(paths, tiers.StoreOptions{}, e.log)
		default:
			st, err = tiers.NewUring(paths, tiers.StoreOptions{}, e.log)
		}
		if err != nil {
			return nil, fmt.Errorf("store %s: %w", e.opt.Store, err)
		}
		return e.verified(st, paths, copies)
	}
	var st tiers.Store
	var err error
	if e.opt.Mirror == "" {
		st, err = open(paths, false)
	} else {
		st, err = e.openMirror(paths, open)
	}
	return st, err
}

// openMirror opens a store that shares the reads between the model's files and their copies.
func (e *Engine) openMirror(paths []string, open func(paths []string, copies bool) (tiers.Store, error)) (tiers.Store, error) {
	copies, err := mirrorPaths(e.opt.Mirror, paths)
	if err != nil {
		return nil, err
	}
	o := tiers.MirrorOptions{Paths: copies, Log: e.log}
	for _, s := range e.file.Shards {
		o.Compare = append(o.Compare, s.DataStart)
	}
	return tiers.NewMirror(paths, o, open)
}

// mirrorPaths finds the copy of each of a model's files: in the folder mirror, or beside the file mirror, by their names;
// the copy of a model of one file may have another name. "" stands for a copy that is not there.
func mirrorPaths(mirror string, paths []string) ([]string, error) {
	fi, err := os.Stat(mirror)
	if err != nil {
		return nil, fmt.Errorf("mirror: %w", err)
	}
	if !fi.IsDir() && len(paths) == 1 {
		return []string{mirror}, nil
	}
	dir := mirror
	if !fi.IsDir() {
		dir = filepath.Dir(mirror)
	}
	out := make([]string, len(paths))
	for i, p := range paths {
		c := filepath.Join(dir, filepath.Base(p))
		switch _, err := os.Stat(c); {
		case err == nil:
			out[i] = c
		case !errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("mirror: %w", err)
		}
	}
	return out, nil
}

// bestStore is the store that was found the fastest on the model's disk, or is found so now.
func (e *Engine) bestStore(paths []string) string {
	const first = "uring" // where nothing was measured; it falls back on its own
	var size int64
	for _, s := range e.file.Shards {
		size += s.Size
	}
	if e.opt.Profile == "" {
		return first
	}
	key, err := host.Device(paths[0])
	if err != nil {
		e.log.Warn("the model's disk has no name, so it is not in the machine profile", "reason", err)
		return first
	}
	d, known := plan.LoadProfile(e.opt.Profile, e.log).Disks[key]
	if known && !d.Settled && size >= probeLeast && fault.Now().Sub(d.Measured) > unsettledFor {
		e.log.Info("the disk's rate had not settled when it was measured: once more", "device", key, "sustained", int64(d.Sustained), "measured", d.Measured.Format(time.DateTime))
		known = false
	}
	if known {
		e.log.Info("disk known", "device", key, "store", d.Store, "sustained", int64(d.Sustained), "burst", int64(d.Burst), "measured", d.Measured.Format(time.DateOnly))
		return d.Store
	}
	if size < probeLeast {
		e.log.Info("the model is small: its disk is not measured", "bytes", size, "least", probeLeast)
		return first
	}
	e.log.Info("measuring the model's disk", "device", key)
	p, err := tiers.Probe(context.Background(), tiers.ProbeOptions{Paths: paths, Experts: e.table, Time: probeTime, Log: e.log})
	if err != nil { // whoever reads next will meet the same error and say what it means for the model
		e.log.Warn("the disk could not be measured", "reason", err)
		return first
	}
	d = plan.Disk{Measured: fault.Now().UTC().Truncate(time.Second), Burst: p.Burst, Sustained: p.Sustained, Settled: p.Settled, Piece: p.Piece, Depth: p.Depth, Store: p.Best}
	for _, s := range p.Stores {
		d.Stores = append(d.Stores, plan.Store{Name: s.Name, Rate: s.Rate, CPUPerGB: s.CPUPerGB})
	}
	e.log.Info("disk measured", "device", key, "store", d.Store, "sustained", int64(d.Sustained), "burst", int64(d.Burst), "settled", d.Settled,
		"bytes", p.Bytes, "ms", p.Took.Milliseconds())
	if err := plan.UpdateProfile(e.opt.Profile, func(m *plan.Profile) { m.Disks[key] = d }); err != nil {
		e.log.Warn("the measurement is not kept", "reason", err)
	}
	return d.Store
}
