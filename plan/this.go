package plan

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Guesses about a machine that nobody measured: what a laptop of some years offers. Their uncertainty is said beside them.
const (
	guessMemory = 12e9 // a thread, up to guessThreads of them
	guessDisk   = 2e9
	guessScale  = 0.35 // of the reference's kernels, a thread
	guessRead   = 0.06 // processor seconds for 10^9 bytes that a real disk brings
	guessError  = 0.5

	guessLatency = 100e-6 // of a real disk's read, seconds

	guessThreads    = 4
	calibratedError = 0.15
)

// Card is a graphics card as the profile knows it, or a typical one where it does not.
func (p *Profile) Card(name string, vram int64) *GPU {
	g := TypicalGPU(name, vram)
	if r, ok := p.GPUs[name]; ok && r.Memory > 0 {
		g.Memory, g.Layer, g.Measured = r.Memory, r.Layer, true
		if r.Link > 0 {
			g.Link = r.Link
		}
	}
	return g
}

// Machine is this machine as the profile knows it, with a model on the given device (host.Device; "" where there is none)
// and so many compute threads. What was not measured is guessed, Measured is false then and Source says what is missing.
func (p *Profile) Machine(device string, ram int64, threads int) Machine {
	m := Machine{Name: "this machine", RAM: ram, Threads: threads, Disks: device, Kernels: p.Kernels, Gemm: p.Gemm, Error: calibratedError}
	var missing []string
	m.Scale = guessScale * float64(threads)
	if len(p.Kernels) > 0 { // types that were not measured are in proportion
		log, n := 0.0, 0
		for t, v := range p.Kernels {
			if ref := reference.MatVec[t]; ref > 0 {
				log, n = log+math.Log(v/ref), n+1
			}
		}
		if n > 0 {
			m.Scale = math.Exp(log / float64(n))
		}
	} else {
		missing = append(missing, "kernels")
	}
	if len(p.Gemm) > 0 {
		log := 0.0
		for _, g := range p.Gemm {
			ref := reference.Gemm[g.Type]
			if ref == 0 {
				ref = g.Rate
			}
			log += math.Log(g.Rate / rowShare(float64(g.Rows)) / ref)
		}
		m.GemmX = math.Exp(log / float64(len(p.Gemm)))
	}
	var when time.Time
	if p.Memory != nil {
		m.Memory, m.Cache, when = p.Memory.Rate, p.Memory.Cache, p.Memory.Measured
		if p.Memory.Threads != threads {
			m.Error = math.Max(m.Error, 0.25)
		}
	} else {
		m.Memory = guessMemory * float64(min(threads, guessThreads))
		missing = append(missing, "memory")
	}
	if d, ok := p.Disks[device]; ok {
		m.Disk, m.Burst = d.Sustained, d.Burst
		if !d.Settled {
			m.Error = math.Max(m.Error, 0.25)
		}
	} else {
		m.Disk = guessDisk
		missing = append(missing, "the model's disk")
	}
	m.Engine.Read, m.Engine.ReadPrompt, m.Engine.Held, m.Engine.Latency = guessRead, guessRead, guessRead, guessLatency
	m.Engine.PromptAsk = guessLatency / 2 // several are read at once
	if p.Engine != nil {
		m.Engine = *p.Engine
	}
	if len(missing) > 0 {
		m.Source = fmt.Sprintf("%s guessed: terrace calibrate measures", strings.Join(missing, ", "))
		m.Error = guessError
	} else {
		m.Source, m.Measured = "calibrated "+when.Format(time.DateOnly), true
	}
	return m
}
