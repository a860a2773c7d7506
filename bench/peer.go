package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// PeerConfig compares Terrace with llama.cpp on one file.
type PeerConfig struct {
	SpeedConfig
	LlamaBench string   // path of a llama-bench program
	Extra      []string // further arguments for it
	Pairs      int
}

// PeerRun is what llama-bench says of one test.
type PeerRun struct {
	Commit  string    `json:"build_commit"`
	CPU     string    `json:"cpu_info"`
	Backend string    `json:"backends"`
	Threads int       `json:"n_threads"`
	Batch   int       `json:"n_batch"`
	UBatch  int       `json:"n_ubatch"`
	KeyType string    `json:"type_k"`
	ValType string    `json:"type_v"`
	Prompt  int       `json:"n_prompt"`
	Gen     int       `json:"n_gen"`
	Depth   int       `json:"n_depth"`
	Speed   float64   `json:"avg_ts"` // tokens per second, mean of the runs
	Samples []float64 `json:"samples_ts"`
}

// Pair is one A B of the alternation; speeds in tokens per second, 0 for what was not timed.
type Pair struct {
	Prefill     float64 `json:"prefill"`
	Decode      float64 `json:"decode"`
	PeerPrefill float64 `json:"peer_prefill"`
	PeerDecode  float64 `json:"peer_decode"`
	Load        string  `json:"load_average"`
}

// PeerReport holds the pairs and their ratios, ours by theirs.
type PeerReport struct {
	Machine      Machine    `json:"machine"`
	Commit       string     `json:"commit"`
	Model        string     `json:"model"`
	Conditions   Conditions `json:"conditions"`
	Peer         PeerRun    `json:"peer"`
	Pairs        []Pair     `json:"pairs"`
	PrefillRatio *Spread    `json:"prefill_ratio,omitempty"`
	DecodeRatio  *Spread    `json:"decode_ratio,omitempty"`
	Prefill      *Spread    `json:"prefill,omitempty"`
	Decode       *Spread    `json:"decode,omitempty"`
	PeerPrefill  *Spread    `json:"peer_prefill,omitempty"`
	PeerDecode   *Spread    `json:"peer_decode,omitempty"`
}

// Peer runs both programs in turn, A B A B, so that what else the machine does meets both alike. Terrace stays loaded and
// its workers sleep while the other runs; llama-bench loads the file anew and warms up by itself each time. Both get the
// same numbers of tokens, threads and runs, random tokens, and float16 keys and values unless Options say otherwise.
func Peer(ctx context.Context, c PeerConfig) (*PeerReport, error) {
	if c.Pairs < 1 {
		return nil, fmt.Errorf("%d pairs, want at least 1", c.Pairs)
	}
	r, err := openRunner(ctx, c.SpeedConfig)
	if err != nil {
		return nil, err
	}
	defer r.close()
	rep := &PeerReport{Machine: ThisMachine(), Commit: Commit()}
	for range c.Pairs {
		var p Pair
		for range r.c.Reps {
			if c.Prompt > 0 {
				v, err := r.prefill(ctx)
				if err != nil {
					return nil, err
				}
				p.Prefill += v / float64(r.c.Reps)
			}
			if c.Decode > 0 {
				v, err := r.decode(ctx)
				if err != nil {
					return nil, err
				}
				p.Decode += v / float64(r.c.Reps)
			}
		}
		runs, err := llamaBench(ctx, &c, r)
		if err != nil {
			return nil, err
		}
		for _, x := range runs {
			rep.Peer = x
			switch {
			case x.Gen == 0:
				p.PeerPrefill = x.Speed
			case x.Prompt == 0:
				p.PeerDecode = x.Speed
			}
		}
		if c.Prompt > 0 && p.PeerPrefill <= 0 || c.Decode > 0 && p.PeerDecode <= 0 {
			return nil, fmt.Errorf("%s: no speed for %d prompt tokens and %d decoded ones in its answer", c.LlamaBench, c.Prompt, c.Decode)
		}
		p.Load = LoadAverage()
		rep.Pairs = append(rep.Pairs, p)
	}
	rep.Model, rep.Conditions = r.stats.Model, r.conditions()
	column := func(f func(p *Pair) float64) *Spread {
		var v []float64
		for i := range rep.Pairs {
			v = append(v, f(&rep.Pairs[i]))
		}
		s := SpreadOf(v)
		return &s
	}
	if c.Prompt > 0 {
		rep.PrefillRatio = column(func(p *Pair) float64 { return p.Prefill / p.PeerPrefill })
		rep.Prefill = column(func(p *Pair) float64 { return p.Prefill })
		rep.PeerPrefill = column(func(p *Pair) float64 { return p.PeerPrefill })
	}
	if c.Decode > 0 {
		rep.DecodeRatio = column(func(p *Pair) float64 { return p.Decode / p.PeerDecode })
		rep.Decode = column(func(p *Pair) float64 { return p.Decode })
		rep.PeerDecode = column(func(p *Pair) float64 { return p.PeerDecode })
	}
	return rep, nil
}

// llamaBench runs the other program once, prompt and decode one after the other.
func llamaBench(ctx context.Context, c *PeerConfig, r *runner) ([]PeerRun, error) {
	o := r.e.Options()
	args := []string{"-m", o.Path, "-t", strconv.Itoa(o.Threads), "-p", strconv.Itoa(c.Prompt), "-n", strconv.Itoa(c.Decode),
		"-r", strconv.Itoa(r.c.Reps), "-ctk", o.KeyType.String(), "-ctv", o.ValType.String(), "-ub", strconv.Itoa(o.Batch), "-o", "json"}
	if c.Depth > 1 {
		if c.Prompt > 0 {
			return nil, errors.New("a depth applies to llama-bench's prompt too: time decoding at a depth without a prompt")
		}
		args = append(args, "-d", strconv.Itoa(c.Depth))
	}
	cmd := exec.CommandContext(ctx, c.LlamaBench, append(args, c.Extra...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(errs.String())
		if i := strings.LastIndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
		return nil, fmt.Errorf("%s: %w: %s", c.LlamaBench, err, text)
	}
	return parseLlamaBench(c.LlamaBench, out.Bytes())
}

// parseLlamaBench reads the array that `llama-bench -o json` prints.
func parseLlamaBench(name string, b []byte) ([]PeerRun, error) {
	var runs []PeerRun
	if err := json.Unmarshal(b, &runs); err != nil {
		return nil, fmt.Errorf("%s: its answer is not the JSON expected: %w", name, err)
	}
	return runs, nil
}
