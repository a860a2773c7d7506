package tiers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"sync"
)

// The half-lives of the two counts of a heat profile, in tokens. The short one says what the last text was about and is
// in the currency of some paragraphs, the long one what is asked of this machine at all.
//
// Why these: on tiny-moe's recorded routing, with everything learned from the other texts, a start with the hottest three
// quarters in RAM misses 0.57 of what a cold one misses in 64 tokens with 128 to 256 alone, 0.60 with 1024, 0.64 with 8192;
// with one part of long to three of short it is still 0.57, and a profile that saw another kind of text last is not lost.
const (
	RecentHalfLife = 256
	LongHalfLife   = 8192
)

// HeatModel says which model a heat profile belongs to. Files of one model in other quantisations differ in Fingerprint
// only and can share a profile.
type HeatModel struct {
	Fingerprint string `json:"fingerprint"` // of the file: gguf.File.Fingerprint
	Arch        string `json:"architecture"`
	Name        string `json:"name"`       // general.name
	Base        string `json:"base_model"` // the name of the model it was made from, or empty
	TopK        int    `json:"experts_used"`
}

// Heat is how often each expert of a model was used: a heat profile. A use counts half after the half-life.
type Heat struct {
	Model  HeatModel
	Tokens int64       // counted since the profile was begun
	Recent [][]float64 // [layer][expert], uses in the last RecentHalfLife tokens or so
	Long   [][]float64 // the same with LongHalfLife
}

// NewHeat makes an empty profile of layers with so many experts each.
func NewHeat(m HeatModel, sizes []int) *Heat {
	return &Heat{Model: m, Recent: tableOf(sizes), Long: tableOf(sizes)}
}

func tableOf(sizes []int) [][]float64 {
	t := make([][]float64, len(sizes))
	for i, n := range sizes {
		t[i] = make([]float64, n)
	}
	return t
}

// Sizes are the numbers of experts of each layer.
func (h *Heat) Sizes() []int {
	s := make([]int, len(h.Long))
	for i := range s {
		s[i] = len(h.Long[i])
	}
	return s
}

// Age lets tokens tokens pass in which no expert was used.
func (h *Heat) Age(tokens int64) {
	scale(h.Recent, math.Exp2(-float64(tokens)/RecentHalfLife))
	scale(h.Long, math.Exp2(-float64(tokens)/LongHalfLife))
}

func scale(t [][]float64, by float64) {
	for _, l := range t {
		for i := range l {
			l[i] *= by
		}
	}
}

// Add counts the uses of o, of the same shape, with those of h.
func (h *Heat) Add(o *Heat) {
	add := func(to, from [][]float64) {
		for l := range to {
			for e := range to[l] {
				to[l][e] += from[l][e]
			}
		}
	}
	add(h.Recent, o.Recent)
	add(h.Long, o.Long)
	h.Tokens += o.Tokens
}

// Rates estimates from the profile how often a token uses each expert, 0 to 1: [layer][expert]. A layer of which nothing
// is known is all zero.
func (h *Heat) Rates() [][]float64 {
	out := tableOf(h.Sizes())
	for l := range out {
		var recent, long float64
		for e := range out[l] {
			recent += h.Recent[l][e]
			long += h.Long[l][e]
		}
		for e := range out[l] {
			if recent > 0 {
				out[l][e] += 0.75 * float64(h.Model.TopK) * h.Recent[l][e] / recent
			}
			if long > 0 {
				out[l][e] += 0.25 * float64(h.Model.TopK) * h.Long[l][e] / long
			}
		}
	}
	return out
}

// heatFormat and heatVersion begin every heat file. A reader takes its own version only.
const (
	heatFormat  = "terrace heat"
	heatVersion = 1
)

// heatFile is the JSON form, in a fixed order of fields, so that equal profiles are equal files.
type heatFile struct {
	Format  string      `json:"format"`
	Version int         `json:"version"`
	Model   HeatModel   `json:"model"`
	Tokens  int64       `json:"tokens"`
	Halves  [2]int      `json:"half_lives"` // recent, long
	Layers  []heatLayer `json:"layers"`
	CRC32C  string      `json:"crc32c"` // of the same document with this field empty
}

type heatLayer struct {
	Recent []float64 `json:"recent"`
	Long   []float64 `json:"long"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes the document, layers on lines of their own, and its checksum.
func (f *heatFile) encode() ([]byte, error) {
	f.CRC32C = ""
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	f.CRC32C = fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli))
	if b, err = json.Marshal(f); err != nil {
		return nil, err
	}
	b = bytes.ReplaceAll(b, []byte(`{"recent":`), []byte("\n"+`{"recent":`))
	return append(b, '\n'), nil
}

// Encode is the profile as a file: versioned JSON, the same bytes for the same profile. Counts are rounded to
// thousandths of a use.
func (h *Heat) Encode() ([]byte, error) {
	f := heatFile{Format: heatFormat, Version: heatVersion, Model: h.Model, Tokens: h.Tokens, Halves: [2]int{RecentHalfLife, LongHalfLife}}
	for l := range h.Long {
		x := heatLayer{Recent: make([]float64, len(h.Recent[l])), Long: make([]float64, len(h.Long[l]))}
		for e := range x.Long {
			x.Recent[e], x.Long[e] = math.Round(h.Recent[l][e]*1000)/1000, math.Round(h.Long[l][e]*1000)/1000
		}
		f.Layers = append(f.Layers, x)
	}
	return f.encode()
}

// maxUses bounds a count: no more uses than this fit a half-life, however many profiles were added up.
const maxUses = 1e12

// DecodeHeat reads what Encode wrote and refuses everything else: another format or version, a document that is cut or
// damaged, counts that cannot be. Whose profile it is, the caller compares.
func DecodeHeat(b []byte) (*Heat, error) {
	var f heatFile
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("no heat profile: %w", err)
	}
	switch {
	case f.Format != heatFormat:
		return nil, fmt.Errorf("no heat profile: format %q, want %q", f.Format, heatFormat)
	case f.Version != heatVersion:
		return nil, fmt.Errorf("heat profile of version %d, want %d", f.Version, heatVersion)
	case f.Halves != [2]int{RecentHalfLife, LongHalfLife}:
		return nil, fmt.Errorf("heat profile with half-lives %v, want %v", f.Halves, [2]int{RecentHalfLife, LongHalfLife})
	}
	said := f.CRC32C
	if _, err := f.encode(); err != nil {
		return nil, fmt.Errorf("heat profile: %w", err)
	}
	if f.CRC32C != said {
		return nil, fmt.Errorf("heat profile is damaged: checksum %s, the file says %q", f.CRC32C, said)
	}
	h := &Heat{Model: f.Model, Tokens: f.Tokens}
	if f.Tokens < 0 {
		return nil, fmt.Errorf("heat profile: %d tokens", f.Tokens)
	}
	for l, x := range f.Layers {
		if len(x.Recent) != len(x.Long) {
			return nil, fmt.Errorf("heat profile: layer %d has %d recent and %d long counts", l, len(x.Recent), len(x.Long))
		}
		for e := range x.Long {
			for _, v := range [2]float64{x.Recent[e], x.Long[e]} {
				if !(v >= 0 && v <= maxUses) {
					return nil, fmt.Errorf("heat profile: expert %d of layer %d has %g uses", e, l, v)
				}
			}
		}
		h.Recent, h.Long = append(h.Recent, x.Recent), append(h.Long, x.Long)
	}
	return h, nil
}

// ErrOtherModel is wrapped when a profile belongs to another model.
var ErrOtherModel = errors.New("heat profile of another model")

// Fits says whether a profile can serve model m with layers of so many experts: nil, or an error with both values. Files
// of the same model in other quantisations fit.
func (h *Heat) Fits(m HeatModel, sizes []int) error {
	if h.Model.Arch != m.Arch {
		return fmt.Errorf("%w: its architecture is %q, the model's %q", ErrOtherModel, h.Model.Arch, m.Arch)
	}
	if h.Model.TopK != m.TopK {
		return fmt.Errorf("%w: it has %d experts a token, the model %d", ErrOtherModel, h.Model.TopK, m.TopK)
	}
	if len(h.Long) != len(sizes) {
		return fmt.Errorf("%w: it has %d layers, the model %d", ErrOtherModel, len(h.Long), len(sizes))
	}
	for l, n := range sizes {
		if len(h.Long[l]) != n {
			return fmt.Errorf("%w: its layer %d has %d experts, the model's %d", ErrOtherModel, l, len(h.Long[l]), n)
		}
	}
	if h.Model.Fingerprint == m.Fingerprint {
		return nil
	}
	// Those who quantise a model often name the original as its base: either name may be the other's.
	for _, a := range []string{h.Model.Name, h.Model.Base} {
		for _, b := range []string{m.Name, m.Base} {
			if a != "" && plainName(a) == plainName(b) {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: it is called %q (made from %q), the model %q (made from %q)", ErrOtherModel, h.Model.Name, h.Model.Base, m.Name, m.Base)
}

// plainName is a model's name without case and punctuation, which converters set as they like.
func plainName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case strings.ContainsRune(" -_.", r):
			return -1
		}
		return r
	}, s)
}

// HeatCounter counts uses while a model runs. Use allocates nothing and takes well under a microsecond; all methods may
// be called from any goroutine.
type HeatCounter struct {
	mu     sync.Mutex
	sizes  []int
	now    int64 // tokens since the last Take
	origin int64 // the token whose uses weigh 1
	last   int   // the layer counted last
	h      *Heat
}

// NewHeatCounter makes a counter for layers of so many experts.
func NewHeatCounter(sizes []int) *HeatCounter {
	return &HeatCounter{sizes: sizes, h: NewHeat(HeatModel{}, sizes)}
}

// maxWeight is the power of two at which counts are scaled down, far below the largest float64.
const maxWeight = 256

// Use counts that rows tokens used these experts of a layer (each as often as it stands in the list) and returns the
// tokens counted since the last Take. Time goes on by rows when a layer does not come after the one before.
func (c *HeatCounter) Use(layer int, choices []int32, rows int) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if layer <= c.last || c.now == 0 {
		c.now += int64(rows)
		// A use weighs more the later it is, instead of all counts shrinking at each token.
		if d := c.now - c.origin; d > maxWeight*RecentHalfLife {
			c.h.Age(d)
			c.origin = c.now
		}
	}
	c.last = layer
	d := float64(c.now - c.origin)
	recent, long := math.Exp2(d/RecentHalfLife), math.Exp2(d/LongHalfLife)
	for _, e := range choices {
		c.h.Recent[layer][e] += recent
		c.h.Long[layer][e] += long
	}
	return c.now
}

// Take gives what was counted since the last Take, as of now.
func (c *HeatCounter) Take() *Heat {
	fresh := NewHeat(HeatModel{}, c.sizes)
	c.mu.Lock()
	h := c.h
	h.Tokens = c.now
	d := c.now - c.origin
	c.h, c.now, c.origin = fresh, 0, 0
	c.mu.Unlock()
	h.Age(d)
	return h
}
