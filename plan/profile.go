package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"terrace/internal/host"
)

// ProfileVersion is the version of the profile's file that this program writes and reads.
const ProfileVersion = 1

// ErrNewer is wrapped when a profile was written by a newer program: it is neither read nor overwritten.
var ErrNewer = errors.New("a newer program wrote it")

// Profile is what was measured about a machine, so that it need not be measured again. The zero value knows nothing.
type Profile struct {
	Version int             `json:"version"`
	Disks   map[string]Disk `json:"disks,omitempty"` // by host.Device of a file on it

	// By `terrace calibrate`, all threads: memory bandwidth, weight bytes per second of each type's mat-vec from cache,
	// products with batches, and what a running engine adds.
	Memory  *Memory            `json:"memory,omitempty"`
	Kernels map[string]float64 `json:"kernels,omitempty"`
	Gemm    []Gemm             `json:"gemm,omitempty"`
	Engine  *Costs             `json:"engine_costs,omitempty"`
	Path    string             `json:"kernel_path,omitempty"` // instructions that the kernels used

	GPUs map[string]CardRates `json:"gpus,omitempty"` // by the device's name
}

// CardRates is what was measured about a graphics card: bytes per second of weights that its products read, bytes per second from
// RAM, and seconds that a layer of a decoded token takes beside its weights.
type CardRates struct {
	Measured time.Time          `json:"measured"`
	Memory   float64            `json:"bytes_per_second"`
	Link     float64            `json:"link_bytes_per_second"`
	Layer    float64            `json:"layer_s"`
	Types    map[string]float64 `json:"types,omitempty"` // bytes per second by type
}

// Disk is what was measured about the disk under a model. Rates are bytes per second.
type Disk struct {
	Measured  time.Time `json:"measured"`
	Burst     float64   `json:"burst_bytes_per_second"`     // the best half second
	Sustained float64   `json:"sustained_bytes_per_second"` // the last, once a burst was over
	Settled   bool      `json:"settled"`                    // the rate stood still when the measurement ended
	Piece     int64     `json:"piece_bytes"`                // mean bytes of a read
	Depth     int       `json:"depth"`                      // reads at once
	Store     string    `json:"store"`                      // the best one
	Stores    []Store   `json:"stores"`                     // those compared
}

// Store is one way to read the disk.
type Store struct {
	Name     string  `json:"name"`
	Rate     float64 `json:"bytes_per_second"`
	CPUPerGB float64 `json:"cpu_s_per_gb,omitempty"` // processor seconds per 10^9 bytes; 0 where the system does not tell
}

// Memory is the machine's read bandwidth.
type Memory struct {
	Measured time.Time `json:"measured"`
	Rate     float64   `json:"bytes_per_second"`
	Threads  int       `json:"threads"`
	Cache    int64     `json:"cache_bytes,omitempty"` // of the last level, where the processor tells
}

// check drops nothing silently: a profile with impossible numbers is no profile.
func (p *Profile) check() error {
	positive := func(what string, v float64) error {
		if !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%s is %g", what, v)
		}
		return nil
	}
	for name, d := range p.Disks {
		err := cmp.Or(positive("burst", d.Burst), positive("sustained", d.Sustained))
		if err == nil && d.Store == "" {
			err = errors.New("no store is named")
		}
		if err != nil {
			return fmt.Errorf("disk %.80q: %w", name, err)
		}
	}
	if p.Memory != nil {
		if err := positive("memory rate", p.Memory.Rate); err != nil {
			return err
		}
	}
	for name, v := range p.Kernels {
		if err := positive(fmt.Sprintf("kernel %.80q", name), v); err != nil {
			return err
		}
	}
	for _, g := range p.Gemm {
		if err := positive(fmt.Sprintf("products of %.80q with %d rows", g.Type, g.Rows), g.Rate); err != nil {
			return err
		}
		if g.Rows < 1 {
			return fmt.Errorf("products of %.80q with %d rows, want at least 1", g.Type, g.Rows)
		}
	}
	if c := p.Engine; c != nil {
		return cmp.Or(positive("efficiency", c.Efficiency), positive("efficiency of prompts", c.Prefill))
	}
	return nil
}

// ReadProfile reads a profile; a file that does not exist is an empty profile. The error names the file; with ErrNewer the
// file must be left alone, with any other it may be written anew.
func ReadProfile(path string) (Profile, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Profile{}, nil
	}
	if err != nil {
		return Profile{}, fmt.Errorf("machine profile: %w", err)
	}
	p, err := decodeProfile(b)
	if err != nil {
		return Profile{}, fmt.Errorf("machine profile %s: %w", path, err)
	}
	return p, nil
}

// decodeProfile reads the text of a profile.
func decodeProfile(b []byte) (Profile, error) {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return Profile{}, err
	}
	if v.Version > ProfileVersion {
		return Profile{}, fmt.Errorf("version %d, this program knows %d: %w", v.Version, ProfileVersion, ErrNewer)
	}
	if v.Version < 1 {
		return Profile{}, fmt.Errorf("version %d, want %d", v.Version, ProfileVersion)
	}
	var p Profile
	if err := json.Unmarshal(b, &p); err != nil {
		return Profile{}, err
	}
	if err := p.check(); err != nil {
		return Profile{}, err
	}
	return p, nil
}

// LoadProfile is ReadProfile for those who can do without: what cannot be used is logged, and empty.
func LoadProfile(path string, log *slog.Logger) Profile {
	p, err := ReadProfile(path)
	if err != nil && log != nil {
		log.Warn("the machine profile is not used", "reason", err)
	}
	return p
}

// Save writes the profile whole or not at all: a reader meets the old or the new one, even after a crash.
func (p *Profile) Save(path string) error {
	p.Version = ProfileVersion
	b, err := json.MarshalIndent(p, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = host.ReplaceFile(path, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("machine profile %s: %w", path, err)
	}
	return nil
}

// lockWait is how long another program may take to change the profile.
const lockWait = 2 * time.Second

// UpdateProfile changes the profile in a file, one program at a time. One from a newer program is left alone, with
// ErrNewer; one that cannot be read is replaced.
func UpdateProfile(path string, change func(*Profile)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("machine profile %s: %w", path, err)
	}
	unlock, err := host.LockFile(path+".lock", lockWait)
	if err != nil {
		return fmt.Errorf("machine profile: %w", err)
	}
	defer unlock()
	p, err := ReadProfile(path)
	if errors.Is(err, ErrNewer) {
		return err
	}
	if p.Disks == nil {
		p.Disks = map[string]Disk{}
	}
	change(&p)
	return p.Save(path)
}
