// Package engine joins the rooms: it opens a model, decides what memory it gets, and runs sequences through it, with the
// experts streamed from disk.
//
// It prints nothing and reads no environment; servers and commands sit above it.
package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"terrace/compute"
	"terrace/internal/host"
	"terrace/model"
)

// ErrDoesNotFit is wrapped by every refusal whose reason is that memory is too small for the model or its context.
var ErrDoesNotFit = errors.New("does not fit")

// ErrPrompt is wrapped by refusals of a prompt: empty, or longer than the context.
var ErrPrompt = errors.New("prompt")

// ExpertBudget says how large the expert arena shall be. At most one field is set; all zero leaves it to the RAM budget.
type ExpertBudget struct {
	Bytes   int64   // slot bytes, alignment included
	Percent float64 // share of all experts that have a slot
	Min     bool    // the smallest working set
}

func (b ExpertBudget) isSet() bool { return b.Bytes > 0 || b.Percent > 0 || b.Min }

// Options is what a user can choose. The zero value of each field asks for its default.
type Options struct {
	Path      string         // GGUF file, any part of a split one
	Threads   int            // compute threads; 0: the physical cores this process may use
	Context   int            // positions; 0: the smaller of the model's context and 4096
	Batch     int            // prompt tokens per pass; 0: 512
	RAM       int64          // bytes the process may hold, experts included; 0: from the machine
	ExpertRAM ExpertBudget   // fixes the expert arena alone
	Lookahead int            // layers predicted ahead: 0, 1, 2 or LookaheadAuto
	Store     string         // "auto", "uring", "pread" or "mmap"; "" is auto
	Dense     string         // where dense weights are: "ram", read at the start, or "mmap", left to the page cache; "" is ram
	Mirror    string         // a second copy of the model's files, or the folder with them, on another disk; "" is none
	Profile   string         // file of the machine profile; "" keeps and knows nothing
	Exact     bool           // float32 activations and KV cache
	KeyType   compute.KVType // element type of cached keys; Exact makes it f32; a quantised one needs heads of whole blocks of 32
	ValType   compute.KVType
	// Rope takes the place of what the file says about rotation, to extend its context.
	Rope model.RopeOptions
	// GuessAlways keeps guessing when every expert is in RAM, where guesses are of no use, so that they can be scored.
	GuessAlways bool
	// HeatDir is the folder in which the heat profile of the model is kept: it seeds the cache and is learned further. Empty:
	// no heat is read, counted or saved.
	HeatDir string
	// PredictorDir is the folder in which a fitted predictor of the model is kept. Empty: none is looked for.
	PredictorDir string
	// Predictor says who guesses: "gate-ahead", the next layers' own routers; "fitted", the maps of PredictorDir, which must
	// be there; "auto" or "", these if they are there and fit the model.
	Predictor string
	// Refine guesses the next layer a second time, from a layer's output (Session.SetRefine).
	Refine bool
	// Reserve is what the caller needs of the RAM budget for itself.
	Reserve int64
	// SumsDir is the folder with the experts' checksums; each first read of an expert is compared with them. Empty: no
	// comparison.
	SumsDir string
	Log     *slog.Logger // nil: silent

	tableCache int64 // bytes for the pages of a table of rows, in tests; 0: defaultTableCache

	auto    bool  // the depth may change while it runs
	machine fs.FS // where the system's files are read, in tests; nil: this machine's
}

// LookaheadAuto leaves the depth to the engine.
const LookaheadAuto = -1

const (
	defaultContext = 4096
	defaultBatch   = 512
)

// check completes o and refuses what cannot be meant.
func (o *Options) check() error {
	if o.Path == "" {
		return errors.New("no model given")
	}
	if o.Threads < 0 || o.Threads > 1024 {
		return fmt.Errorf("threads is %d, want 1 to 1024 (0: all cores)", o.Threads)
	}
	if o.Threads == 0 {
		o.Threads = host.PhysicalCores()
	}
	if o.Context < 0 {
		return fmt.Errorf("context size is %d, want at least 1 (0: the model's)", o.Context)
	}
	if o.Batch < 0 || o.Batch > 1<<16 {
		return fmt.Errorf("batch size is %d, want 1 to 65536", o.Batch)
	}
	if o.Batch == 0 {
		o.Batch = defaultBatch
	}
	if o.RAM < 0 || o.ExpertRAM.Bytes < 0 {
		return fmt.Errorf("memory budget is negative (%d and %d bytes)", o.RAM, o.ExpertRAM.Bytes)
	}
	if o.ExpertRAM.Percent < 0 || o.ExpertRAM.Percent > 100 {
		return fmt.Errorf("expert memory is %g %% of the experts, want 0 to 100", o.ExpertRAM.Percent)
	}
	switch o.Lookahead {
	case LookaheadAuto:
		o.Lookahead, o.auto = 2, true
	case 0, 1, 2:
	default:
		return fmt.Errorf("lookahead is %d layers, want 0, 1 or 2", o.Lookahead)
	}
	switch o.Store {
	case "":
		o.Store = "auto"
	case "auto", "uring", "pread", "mmap":
	default:
		return fmt.Errorf("store is %q, want auto, uring, pread or mmap", o.Store)
	}
	switch o.Dense {
	case "":
		o.Dense = "ram"
	case "ram", "mmap":
	default:
		return fmt.Errorf("dense is %q, want ram or mmap", o.Dense)
	}
	if err := o.Rope.Check(); err != nil {
		return err
	}
	switch o.Predictor {
	case "":
		o.Predictor = "auto"
	case "auto", "gate-ahead", "fitted":
	default:
		return fmt.Errorf("predictor is %q, want auto, gate-ahead or fitted", o.Predictor)
	}
	if o.Reserve < 0 {
		return fmt.Errorf("reserve is %d bytes, want at least 0", o.Reserve)
	}
	if o.Exact {
		o.KeyType, o.ValType = compute.KVF32, compute.KVF32
	}
	return nil
}
