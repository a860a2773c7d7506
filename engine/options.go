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
	"time"

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
	Path    string // GGUF file, any part of a split one
	Threads int    // compute threads; 0: the physical cores this process may use
	Context int    // positions of a sequence; 0: the smaller of the model's context and 4096; ContextMost
	Pool    int    // positions of all sequences together, for which memory is counted; 0: as many as one may have
	// CapContext makes a Context beyond the model's the model's, which is an error else.
	CapContext bool
	Slots      int            // sequences that a Scheduler will serve, for which memory is counted; 0: 1
	Batch      int            // prompt tokens per pass; 0: 512, or up to 2048 where experts are read and the budget has room
	RAM        int64          // bytes the process may hold, experts included; 0: from the machine
	ExpertRAM  ExpertBudget   // fixes the expert arena alone
	Lookahead  int            // layers predicted ahead: 0, 1, 2 or LookaheadAuto
	Store      string         // "auto", "uring", "pread" or "mmap"; "" is auto
	Dense      string         // where dense weights are: "ram", read at the start, or "mmap", left to the page cache; "" is ram
	Mirror     string         // a second copy of the model's files, or the folder with them, on another disk; "" is none
	Profile    string         // file of the machine profile; "" keeps and knows nothing
	Backend    string         // "auto", "cpu" or "vulkan"; "" is auto: a discrete GPU if there is one, else the CPU
	Device     int            // number of the GPU, from 1; 0: the best
	VRAM       int64          // most bytes of the GPU's memory; 0: what it offers
	GPULayers  int            // the last layers that are on the GPU: so many, GPULayersNone, or 0: as many as its memory holds
	Exact      bool           // float32 activations and KV cache
	KeyType    compute.KVType // element type of cached keys; Exact makes it f32; a quantised one needs heads of whole blocks of 32
	ValType    compute.KVType
	// Template is the source of a chat template in place of the file's.
	Template string
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
	// CacheRAM is the RAM of a PromptCache, CacheAuto leaves it to the engine. 0: there will be none.
	CacheRAM int64
	// SlotFiles sets memory aside for saving and restoring sequences (SaveState) without a prompt cache.
	SlotFiles bool
	// PipelineCache is the file that keeps compiled shaders from run to run. Empty: nothing is kept.
	PipelineCache string
	// Reserve is what the caller needs of the RAM budget for itself.
	Reserve int64
	// SumsDir is the folder with the experts' checksums; each first read of an expert is compared with them. Empty: no
	// comparison.
	SumsDir string
	// StallReport is the time without progress after which requests are reported, with what waits for what. 0: never.
	StallReport time.Duration `json:"-"`
	// Progress is called by Open, from its own goroutine, when a step begins and while it goes on. nil: nobody looks.
	Progress func(LoadProgress) `json:"-"`
	Log      *slog.Logger       // nil: silent

	tableCache int64 // bytes for the pages of a table of rows, in tests; 0: defaultTableCache

	autoBatch bool // wider passes may be chosen
	auto      bool // the depth may change while it runs
	gpu       gpuTest
	machine   fs.FS // where the system's files are read, in tests; nil: this machine's
}

// GPULayersNone leaves all layers on the CPU.
const GPULayersNone = -1

// LookaheadAuto leaves the depth to the engine.
const LookaheadAuto = -1

// ContextMost is the largest context, up to the one that the model was made for, that leaves experts a quarter of the room.
const ContextMost = -1

const (
	defaultContext = 4096
	defaultBatch   = 512
)

// rows is the most tokens of one pass: a batch of a prompt, and beside it a token for each other sequence.
func (o *Options) rows() int { return o.Batch + o.Slots - 1 }

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
	if o.Context < ContextMost {
		return fmt.Errorf("context size is %d, want at least 1 (0: the model's)", o.Context)
	}
	if o.Slots < 0 || o.Slots > maxSlots {
		return fmt.Errorf("%d slots, want 1 to %d", o.Slots, maxSlots)
	}
	o.Slots = max(o.Slots, 1)
	if o.Batch < 0 || o.Batch > 1<<16 {
		return fmt.Errorf("batch size is %d, want 1 to 65536", o.Batch)
	}
	if o.Batch == 0 {
		o.Batch, o.autoBatch = defaultBatch, true
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
	switch o.Backend {
	case "":
		o.Backend = "auto"
	case "auto", "cpu", "vulkan":
	default:
		return fmt.Errorf("backend is %q, want auto, cpu or vulkan", o.Backend)
	}
	if o.Device < 0 || o.VRAM < 0 {
		return fmt.Errorf("device %d with %d bytes, want neither below 0", o.Device, o.VRAM)
	}
	if o.GPULayers < GPULayersNone {
		return fmt.Errorf("GPU layers are %d, want at least 0", o.GPULayers)
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
	if o.CacheRAM < CacheAuto {
		return fmt.Errorf("the prompt cache is %d bytes, want at least 0", o.CacheRAM)
	}
	if o.StallReport < 0 {
		return fmt.Errorf("the time without progress is %v, want at least 0", o.StallReport)
	}
	if o.Reserve < 0 {
		return fmt.Errorf("reserve is %d bytes, want at least 0", o.Reserve)
	}
	if o.Exact {
		o.KeyType, o.ValType = compute.KVF32, compute.KVF32
	}
	return nil
}
