package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"terrace/chat"
	"terrace/engine"
	"terrace/gguf"
	"terrace/internal/host"
	"terrace/plan"
	"terrace/tokenizer"
)

// old is the age from which on a measurement of a disk is worth repeating.
const old = 180 * 24 * time.Hour

// profile looks at what `terrace calibrate` left.
func (x *examiner) profile() {
	if x.o.Profile == "" {
		return
	}
	const do = "terrace calibrate"
	p, err := plan.ReadProfile(x.o.Profile)
	switch {
	case errors.Is(err, plan.ErrNewer):
		x.add("profile", Note, "use the newer program, or remove the file", "%v", err)
		return
	case err != nil:
		x.add("profile", Warn, do, "%v", err)
		return
	case p.Memory == nil || len(p.Kernels) == 0:
		x.add("profile", Note, do+" measures this machine, so that plans need not guess", "memory and kernels were never measured")
	default:
		x.add("profile", OK, "", "memory %.1f GB/s, measured %s", p.Memory.Rate/1e9, p.Memory.Measured.Format(time.DateOnly))
	}
	if x.o.Model == "" {
		return
	}
	device, err := host.Device(x.o.Model)
	if err != nil {
		return // the model's own finding says it
	}
	d, ok := p.Disks[device]
	switch {
	case !ok:
		x.add("disk speed", Note, do+" -m "+x.o.Model, "the model's disk was never measured")
	case !d.Settled:
		x.add("disk speed", Note, do+" --disk-time 20s measures until it stands still", "%.2f GB/s, and still changing when the measurement ended", d.Sustained/1e9)
	case time.Since(d.Measured) > old:
		x.add("disk speed", Note, do, "%.2f GB/s, measured long ago (%s)", d.Sustained/1e9, d.Measured.Format(time.DateOnly))
	case d.Sustained < 0.3e9:
		x.add("disk speed", Warn, "a faster disk, or a smaller quantisation, or more memory", "%.2f GB/s: decoding will wait for it wherever experts do not fit", d.Sustained/1e9)
	default:
		x.add("disk speed", OK, "", "%.2f GB/s sustained, %.2f at first", d.Sustained/1e9, d.Burst/1e9)
	}
}

// model looks at the file.
func (x *examiner) model() {
	if x.o.Model == "" {
		return
	}
	f, err := gguf.Open(x.o.Model)
	if err != nil {
		do := "download it again"
		if errors.Is(err, fs.ErrNotExist) {
			do = "look for its name"
		}
		x.add("model file", Fail, do, "%v", err)
		return
	}
	o := x.o.Engine
	o.PredictorDir = x.o.Cache
	s, err := engine.ShapeOf(f, o)
	if err != nil {
		x.add("model file", Fail, "another file: this one cannot be run", "%v", err)
		return
	}
	x.add("model file", OK, "", "%s, %s, %d part(s)", s.Arch, s.Types, len(f.Shards))
	x.holes(f)
	x.room(&s)
	if b := s.BitsPerWeight(); b > 0 && b < 3.5 {
		x.add("quantisation", Note, "if answers loop, try a larger file before other settings", "%.2f bits a weight of routed experts: loops are the first complaint below 3.5", b)
	}
	x.words(f)
	if x.o.Cache != "" && s.Fixed.Experts > 0 {
		if fp, err := f.Fingerprint(); err == nil {
			if _, err := os.Stat(filepath.Join(x.o.Cache, "heat-"+fp+".json")); err == nil {
				x.add("heat profile", OK, "", "there is one: the hottest experts are read first")
			} else {
				x.add("heat profile", Note, "nothing: the first answers make it", "none yet: the first answers begin with an empty cache")
			}
		}
	}
}

// holes finds files that are not all there: an interrupted download that reserved its size, or one made without data.
func (x *examiner) holes(f *gguf.File) {
	var size, held int64
	for _, p := range f.Shards {
		n, err := host.Allocated(p.Path)
		if err != nil {
			return
		}
		size, held = size+p.Size, held+n
	}
	if held < size/10*9 {
		x.add("model data", Warn, "unless it is compressed, or made so by bench synth, download it again", "%s of %s are on the disk: the rest is holes, which read as zeros", gib(held), gib(size))
	} else {
		x.add("model data", OK, "", "%s, all of it on the disk", gib(size))
	}
}

// room compares the smallest budget with what there is.
func (x *examiner) room(s *plan.Shape) {
	ram, err := engine.AutoRAM()
	if err != nil {
		x.add("fits", Unknown, "give --ram", "%v", err)
		return
	}
	least := s.Least()
	b, fits := s.Budget(ram)
	switch {
	case !fits:
		x.add("fits", Fail, "a smaller -c, -ctk q8_0 -ctv q8_0, --dense mmap, or a smaller file", "needs %s, there are %s", gib(least), gib(ram))
	case b.Experts > 0 && b.Slots < b.Experts/20:
		x.add("fits", Warn, "free memory, or take a smaller quantisation", "%s hold %.0f %% of the experts: most are read for each token", gib(ram), 100*float64(b.Slots)/float64(b.Experts))
	case b.Experts > 0:
		x.add("fits", OK, "", "%s hold %.0f %% of the experts", gib(ram), 100*float64(b.Slots)/float64(b.Experts))
	default:
		x.add("fits", OK, "", "a dense model of %s in %s", gib(least), gib(ram))
	}
}

// words looks at tokenizer and template.
func (x *examiner) words(f *gguf.File) {
	tok, err := tokenizer.New(f.Metadata)
	if err != nil {
		x.add("tokenizer", Fail, "another file", "%v", err)
		return
	}
	state, what := OK, fmt.Sprintf("%d tokens", tok.Vocab())
	for _, w := range tok.Warnings() {
		state, what = Note, w
	}
	x.add("tokenizer", state, "", "%s", what)
	src, err := f.Metadata.StringOr("tokenizer.chat_template", "")
	if err == nil && src == "" {
		x.add("chat template", Note, "--raw, or a file with its template, if answers look wrong", "the file has none: ChatML is used")
		return
	}
	if err == nil {
		_, err = chat.Default(src, chat.Options{})
	}
	if err != nil {
		x.add("chat template", Warn, "--raw continues a text without it", "%v", err)
		return
	}
	x.add("chat template", OK, "", "of the file")
}
