package main

import (
	"encoding/json"
	"fmt"
	"sort"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/compute"
	"terrace/gguf"
	"terrace/model"
)

func inspectCommand(e env) *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "what is in a GGUF file: header, metadata, tensors, expert layout",
		ArgsUsage: "[MODEL]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`, instead of the argument"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
			&cli.BoolFlag{Name: "tensors", Usage: "list every tensor"},
			&cli.BoolFlag{Name: "metadata", Usage: "list every key"},
			&cli.BoolFlag{Name: "checksum", Usage: "read every expert and write the checksums that run --verify compares with, instead of a report"},
		},
		Action: func(c *cli.Context) error { return runInspect(c, e) },
	}
}

// report is what inspect prints.
type report struct {
	Path     string            `json:"path"`
	Version  uint32            `json:"version"`
	Shards   []shardReport     `json:"shards"`
	Arch     string            `json:"arch"`
	Name     string            `json:"name"`
	Params   uint64            `json:"params"`
	Types    []typeReport      `json:"types"`
	Experts  *expertReport     `json:"experts,omitempty"`
	State    *stateReport      `json:"state,omitempty"`
	Table    *tableReport      `json:"table,omitempty"`
	Weights  *weightReport     `json:"weights,omitempty"`
	Runs     bool              `json:"supported"`
	Reason   string            `json:"reason,omitempty"` // why Terrace cannot run it
	Metadata map[string]string `json:"metadata,omitempty"`
	Tensors  []tensorReport    `json:"tensors,omitempty"`
}

type shardReport struct {
	Path      string `json:"path"`
	Size      int64  `json:"size"`
	DataStart int64  `json:"data_start"`
}

type typeReport struct {
	Type    string `json:"type"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

type tensorReport struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"`
	Dims   []uint64 `json:"dims"`
	Shard  int      `json:"shard"`
	Offset int64    `json:"offset"`
	Bytes  int64    `json:"bytes"`
}

type expertReport struct {
	Layers   int   `json:"layers"`
	PerLayer int   `json:"per_layer"`
	Used     int   `json:"used"`
	Total    int   `json:"total"`
	MinBytes int64 `json:"min_bytes"`
	MaxBytes int64 `json:"max_bytes"`
	Bytes    int64 `json:"bytes"`
	Dense    int64 `json:"dense_bytes"`
	PerToken int64 `json:"bytes_per_token"` // read per decoded token if nothing were cached
}

// tableReport is a tensor of which a token needs a few rows: it stays on disk.
type tableReport struct {
	Name  string `json:"name"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
}

// stateReport is what a sequence takes: keys and values as f16, recurrent state as float32.
type stateReport struct {
	KV        int64 `json:"kv_bytes_per_token"`
	Index     int64 `json:"index_bytes_per_token,omitempty"`    // keys of a block index, beside KV
	Windowed  int64 `json:"windowed_bytes_per_token,omitempty"` // of those, kept for the last Window positions only
	Window    int   `json:"window,omitempty"`
	Recurrent int64 `json:"recurrent_bytes,omitempty"`
	Conv      int64 `json:"convolution_bytes,omitempty"`
}

// weightReport is what a model has besides its experts; sizes in bytes.
type weightReport struct {
	Dense       int64  `json:"dense_bytes"` // stay in memory
	DenseParams uint64 `json:"dense_params"`
	DenseQ8     int64  `json:"dense_q8_0_bytes"` // what they would be in Q8_0, vectors too, which compares models
	Skipped     int64  `json:"skipped_bytes"`    // of the file, such as a block for drafting
}

func runInspect(c *cli.Context, e env) error {
	path := c.String("model")
	switch {
	case c.NArg() > 1:
		return usagef("%d arguments, want one model", c.NArg())
	case c.NArg() == 1 && path != "":
		return usagef("the model is given twice: by --model and as an argument")
	case c.NArg() == 1:
		path = c.Args().First()
	case path == "":
		var err error
		if path, err = modelPath(c, e); err != nil {
			return err
		}
	}
	if c.Bool("checksum") {
		return runChecksum(c, e, path)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	e.tell()
	r := inspect(f, c.Bool("json") || c.Bool("metadata"), c.Bool("json") || c.Bool("tensors"))
	if c.Bool("json") {
		enc := json.NewEncoder(e.out)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	return inspectText(c, e, f, r)
}

func inspect(f *gguf.File, metadata, tensors bool) *report {
	r := &report{Path: f.Path, Version: f.Version}
	r.Arch, _ = f.Metadata.StringOr("general.architecture", "")
	r.Name, _ = f.Metadata.StringOr("general.name", "")
	for _, s := range f.Shards {
		r.Shards = append(r.Shards, shardReport{s.Path, s.Size, s.DataStart})
	}
	byType := map[gguf.Type]*typeReport{}
	for i := range f.Tensors {
		t := &f.Tensors[i]
		r.Params += t.Elements()
		tr := byType[t.Type]
		if tr == nil {
			tr = &typeReport{Type: t.Type.String()}
			byType[t.Type] = tr
		}
		tr.Tensors++
		tr.Bytes += t.Extent.Length
		if tensors {
			r.Tensors = append(r.Tensors, tensorReport{t.Name, t.Type.String(), t.Dims[:t.NDims], t.Extent.Shard, t.Extent.Offset, t.Extent.Length})
		}
	}
	for _, t := range byType {
		r.Types = append(r.Types, *t)
	}
	sort.Slice(r.Types, func(i, j int) bool { return r.Types[i].Bytes > r.Types[j].Bytes })
	if metadata {
		r.Metadata = map[string]string{}
		for kv := range f.Metadata.Entries() {
			r.Metadata[kv.Key] = kv.Value
		}
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		r.Reason = err.Error()
		return r
	}
	r.Runs = true
	cfg := m.Config()
	x := &expertReport{PerLayer: cfg.Experts, Used: cfg.TopK}
	for _, l := range m.Experts() {
		if len(l) == 0 {
			continue
		}
		x.Layers++
		for i, d := range l {
			n := d.Bytes()
			if x.Total == 0 {
				x.MinBytes = n
			}
			x.Total++
			x.Bytes += n
			x.MinBytes, x.MaxBytes = min(x.MinBytes, n), max(x.MaxBytes, n)
			if i < cfg.TopK {
				x.PerToken += n
			}
		}
	}
	r.Weights = weigh(f, m)
	x.Dense = r.Weights.Dense
	if t := m.Table(); t != nil {
		r.Table = &tableReport{t.Name, t.Rows, t.Length}
	}
	z := m.StateSize(compute.KVF16, compute.KVF16)
	r.State = &stateReport{z.Token, z.Index, z.Windowed, z.Window, z.Recurrent, z.Conv}
	if x.Total > 0 {
		r.Experts = x
	}
	return r
}

func (x *stateReport) String() string {
	s := fmt.Sprintf("%d bytes of f16 keys and values a token", x.KV)
	if x.Index > 0 {
		s += fmt.Sprintf(" and %d of index keys", x.Index)
	}
	if x.Window > 0 {
		s += fmt.Sprintf(", %d of them for the last %d positions only", x.Windowed, x.Window)
	}
	if x.Recurrent+x.Conv > 0 {
		s += fmt.Sprintf("; %s of recurrent state and %s of convolution inputs a sequence", bytesText(x.Recurrent), bytesText(x.Conv))
	}
	return s
}

func weigh(f *gguf.File, m *model.Model) *weightReport {
	r := &weightReport{}
	for _, d := range m.Dense() {
		r.Dense += d.Length
		if t, ok := f.Tensor(d.Name); ok {
			r.DenseParams += t.Elements()
		}
	}
	r.DenseQ8 = int64(r.DenseParams) / 32 * 34
	for i := range f.Tensors {
		r.Skipped += f.Tensors[i].Extent.Length
	}
	sum := m.Footprint()
	r.Skipped -= r.Dense + sum.Table + sum.Experts
	return r
}

func inspectText(c *cli.Context, e env, f *gguf.File, r *report) error {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	p := func(format string, a ...any) { fmt.Fprintf(w, format+"\n", a...) }
	count, unit := float64(r.Params)/1e9, "billion"
	if count < 1 {
		count, unit = float64(r.Params)/1e6, "million"
	}
	p("file\t%s (GGUF v%d, %d shard(s))", oneLine(r.Path), r.Version, len(r.Shards))
	p("model\t%s, architecture %s, %.2f %s parameters", orUnknown(oneLine(r.Name)), oneLine(r.Arch), count, unit)
	for _, t := range r.Types {
		p("type\t%s\t%d tensors\t%s", t.Type, t.Tensors, bytesText(t.Bytes))
	}
	if t := r.Table; t != nil {
		p("table\t%s: %d rows, %s, stay on disk", t.Name, t.Rows, bytesText(t.Bytes))
	}
	if x := r.Experts; x != nil {
		p("experts\t%d layers of %d, %d used a token, %s to %s each, %s in all", x.Layers, x.PerLayer, x.Used, bytesText(x.MinBytes), bytesText(x.MaxBytes), bytesText(x.Bytes))
		p("token\treads %s of experts if none is cached", bytesText(x.PerToken))
	}
	if x := r.Weights; x != nil {
		p("dense\t%s stay in memory, %.2f billion parameters", bytesText(x.Dense), float64(x.DenseParams)/1e9)
		if x.Skipped > 0 {
			p("skipped\t%s that plain decoding leaves out", bytesText(x.Skipped))
		}
	}
	if x := r.State; x != nil {
		p("state\t%s", x)
	}
	if !r.Runs {
		p("cannot run\t%s", oneLine(r.Reason))
	}
	if c.Bool("metadata") {
		p("")
		for kv := range f.Metadata.Entries() {
			p("%s\t%s\t%s", kv.Key, kv.Type, kv.Value)
		}
	}
	if c.Bool("tensors") {
		p("")
		for _, t := range r.Tensors {
			p("%s\t%s\t%v\tshard %d\toffset %d\t%d bytes", oneLine(t.Name), t.Type, t.Dims, t.Shard, t.Offset, t.Bytes)
		}
	}
	return w.Flush()
}
