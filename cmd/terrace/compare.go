package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"terrace/gguf"
	"terrace/hub"
	"terrace/plan"
)

// compareReport is what `plan --compare --json` prints; sizes in bytes.
type compareReport struct {
	Name    string       `json:"name"` // repository or folder
	Commit  string       `json:"commit,omitempty"`
	Machine plan.Machine `json:"machine"`
	RAM     int64        `json:"ram"`
	Budget  int64        `json:"budget"`
	Speed   float64      `json:"min_speed"` // tokens per second
	Context int          `json:"ctx"`
	Files   []compareRow `json:"files"` // the smallest first
	Take    string       `json:"take"`  // the file to take; "" for none
	Reason  string       `json:"reason"`
	Read    int64        `json:"bytes_read"` // over the network
}

// compareRow is one quantisation.
type compareRow struct {
	Name     string           `json:"name"` // of its first file
	Quant    string           `json:"quant"`
	Size     int64            `json:"size"`
	Types    string           `json:"types"` // of routed experts
	Bits     float64          `json:"bits_per_routed_weight"`
	Measured *plan.Divergence `json:"divergence,omitempty"`
	Warning  string           `json:"warning,omitempty"`
	Row      *plan.Row        `json:"row,omitempty"`
	Error    string           `json:"error,omitempty"` // why nothing can be said of it

	shape plan.Shape
}

// headersAtOnce is how many files' headers are read at the same time.
const headersAtOnce = 4

func runCompare(c *cli.Context, e env, name string) error {
	if v := c.Float64("min-speed"); !(v >= 0) {
		return usagef("--min-speed is %g, want at least 0", v)
	}
	r := &compareReport{Speed: c.Float64("min-speed"), Name: name}
	vs, read, done, err := compareFiles(c, e, r)
	if err != nil {
		return err
	}
	defer done()
	if err := r.headers(c, e, vs, read); err != nil {
		return err
	}
	if err := r.plan(c, e); err != nil {
		return err
	}
	switch {
	case c.Bool("json"):
		return printJSON(e, r)
	case c.Bool("markdown"):
		return r.markdown(e)
	}
	return r.text(e)
}

// headerReader reads the header of a variant, and says how much of it came over the network.
type headerReader func(context.Context, *hub.Variant) (*gguf.File, int64, error)

// compareFiles lists what there is to compare, in a repository or a folder.
func compareFiles(c *cli.Context, e env, r *compareReport) (vs []hub.Variant, read headerReader, done func(), err error) {
	if st, err := os.Stat(r.Name); err == nil && st.IsDir() {
		es, err := os.ReadDir(r.Name)
		if err != nil {
			return nil, nil, nil, err
		}
		var files []hub.File
		for _, x := range es {
			st, err := os.Stat(filepath.Join(r.Name, x.Name()))
			if err == nil && st.Mode().IsRegular() && strings.HasSuffix(strings.ToLower(x.Name()), ".gguf") {
				files = append(files, hub.File{Path: x.Name(), Size: st.Size()})
			}
		}
		if vs = hub.Variants(files); len(vs) == 0 {
			return nil, nil, nil, fmt.Errorf("%s: the folder has no GGUF file", r.Name)
		}
		return vs, func(_ context.Context, v *hub.Variant) (*gguf.File, int64, error) {
			f, err := gguf.Open(filepath.Join(r.Name, v.Files[0].Path))
			return f, 0, err
		}, func() {}, nil
	} else if err == nil {
		return nil, nil, nil, usagef("--compare %s: a file, want a repository or a folder of several", r.Name)
	}
	ref, err := parseRef(e, r.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	if ref.Repo == "" || ref.Quant != "" || ref.File != "" {
		return nil, nil, nil, usagef("--compare %s: want ORG/REPO alone, all of whose quantisations are compared", r.Name)
	}
	h, err := newHub(c, e)
	if err != nil {
		return nil, nil, nil, err
	}
	l, err := h.List(c.Context, ref)
	if err != nil {
		h.Close()
		return nil, nil, nil, err
	}
	r.Name, r.Commit = l.Repo, l.Commit
	if vs = hub.Variants(l.Files); len(vs) == 0 {
		h.Close()
		return nil, nil, nil, fmt.Errorf("%s: the repository has no GGUF file: %w", l.Repo, hub.ErrNotFound)
	}
	return vs, func(ctx context.Context, v *hub.Variant) (*gguf.File, int64, error) {
		m, err := l.Model(v)
		if err != nil {
			return nil, 0, err
		}
		return h.Header(ctx, m)
	}, h.Close, nil
}

// headers reads the shape of every file. One that cannot be read is a row that says why; the first goes alone, because its
// header tells how long the others' are.
func (r *compareReport) headers(c *cli.Context, e env, vs []hub.Variant, read headerReader) error {
	r.Files = make([]compareRow, len(vs))
	var mu sync.Mutex
	one := func(i int) {
		v, x := &vs[i], &r.Files[i]
		x.Name, x.Quant, x.Size = v.Files[0].Path, v.Quant, v.Size()
		f, n, err := read(c.Context, v)
		if err == nil {
			x.shape, err = planShape(c, e, f)
		}
		if err != nil {
			x.Error = err.Error()
		}
		mu.Lock()
		r.Read += n
		mu.Unlock()
	}
	one(0)
	var wg sync.WaitGroup
	next := make(chan int)
	for range headersAtOnce {
		wg.Go(func() {
			for i := range next {
				one(i)
			}
		})
	}
	for i := 1; i < len(vs); i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := c.Context.Err(); err != nil {
		return err
	}
	for _, x := range r.Files {
		if x.Error == "" {
			return nil
		}
	}
	return errors.New(r.Files[0].Error)
}

// plan says what the machine does with each file, and which to take.
func (r *compareReport) plan(c *cli.Context, e env) error {
	m, size, err := planMachine(c, e, &gguf.File{Path: r.Name})
	if err != nil {
		return err
	}
	if c.IsSet("ram") || c.IsSet("budget") || c.IsSet("vram") {
		sizes, err := planSizes(c, m)
		if err != nil {
			return err
		}
		if len(sizes) != 1 {
			return usagef("--compare is for one machine, --ram, --budget and --vram name %d", len(sizes))
		}
		size = sizes[0]
	} else if size.RAM == 0 {
		return usagef("this system does not tell its memory: give --ram or --budget")
	}
	r.Machine = m
	var cs []plan.Candidate
	var at []int
	for i := range r.Files {
		x := &r.Files[i]
		if x.Error != "" {
			continue
		}
		p, err := plan.Make(x.shape, m, size)
		if err != nil {
			x.Error = err.Error()
			continue
		}
		x.Row, x.Types, x.Bits, x.Measured = &p.Rows[0], x.shape.Types, x.shape.BitsPerWeight(), x.shape.Measured()
		r.RAM, r.Budget, r.Context = x.Row.RAM, x.Row.Budget, p.Context
		if x.Bits == 0 && x.shape.ParamsTotal > 0 { // no experts
			x.Bits = 8 * float64(x.Size) / float64(x.shape.ParamsTotal)
		}
		k := plan.Candidate{Name: x.Name, Bits: x.Bits, Measured: x.Measured, Row: *x.Row}
		if k.Low() {
			x.Warning = fmt.Sprintf("below %g bits a weight: loops and lost facts are likely", plan.LowBits)
		}
		cs, at = append(cs, k), append(at, i)
	}
	take, why := plan.Choose(cs, r.Speed)
	if r.Reason = why; take >= 0 {
		r.Take = r.Files[at[take]].Name
	}
	return nil
}

var compareColumns = []string{"quant", "size", "bits/weight", "types", "KLD", "in RAM", "hit", "decode/s", "prefill/s", "note"}

func (x *compareRow) cells() []string {
	quant := x.Quant
	if quant == "" {
		quant = strings.TrimSuffix(x.Name, ".gguf")
	}
	cells := []string{oneLine(quant), bytesText(x.Size)}
	if x.Error != "" {
		return append(cells, "", "", "", "", "", "", "", oneLine(x.Error))
	}
	kld := "not known"
	if x.Measured != nil {
		kld = fmt.Sprintf("%.4f to %s", x.Measured.KLD, x.Measured.Against)
	}
	cells = append(cells, fmt.Sprintf("%.2f", x.Bits), x.Types, kld)
	note := x.Warning
	if !x.Row.Fits {
		return append(cells, "-", "-", "-", "-", strings.TrimSuffix("does not fit: needs "+bytesText(x.Row.Least)+"; "+note, "; "))
	}
	if note == "" {
		note = x.Row.Limit
	}
	return append(cells, fmt.Sprintf("%.0f %%", 100*x.Row.Resident), fmt.Sprintf("%.0f %%", 100*x.Row.HitRate),
		fmt.Sprintf("%s +-%.0f %%", speedText(x.Row.Decode), 100*x.Row.Unsure), speedText(x.Row.Prefill), note)
}

func (r *compareReport) head() string {
	m := r.Machine
	s := fmt.Sprintf("%s: %d quantisations, on %s", oneLine(r.Name), len(r.Files), m.Name)
	if r.RAM > 0 {
		s += " of " + gibText(r.RAM)
	}
	return s + fmt.Sprintf(" with a budget of %s, context %d\nspeeds: memory %.1f GB/s, disk %.2f GB/s, %d threads (%s)\n", bytesText(r.Budget), r.Context, m.Memory/1e9, m.Disk/1e9, m.Threads, m.Source)
}

// foot says which to take, and where measurements come from.
func (r *compareReport) foot() string {
	var b strings.Builder
	if r.Take != "" {
		fmt.Fprintf(&b, "take %s: %s\n", oneLine(r.Take), oneLine(r.Reason))
	} else {
		fmt.Fprintf(&b, "no recommendation: %s\n", oneLine(r.Reason))
	}
	for _, x := range r.Files {
		if x.Measured != nil {
			fmt.Fprintf(&b, "KLD of %s: %s\n", oneLine(x.Quant), x.Measured.Source)
		}
	}
	return b.String()
}

func (r *compareReport) text(e env) error {
	rows := make([][]string, len(r.Files))
	for i := range r.Files {
		rows[i] = r.Files[i].cells()
	}
	var b strings.Builder
	b.WriteString(r.head() + "\n")
	b.WriteString(table(e, compareColumns, rows, func(i int) string {
		switch x := &r.Files[i]; {
		case x.Row == nil || !x.Row.Fits:
			return "31"
		case x.Name == r.Take:
			return "32"
		case x.Warning != "":
			return "33"
		}
		return ""
	}))
	b.WriteString("\n" + r.foot())
	_, err := e.out.Write([]byte(b.String()))
	return err
}

func (r *compareReport) markdown(e env) error {
	var b strings.Builder
	for line := range strings.Lines(r.head()) {
		b.WriteString(strings.TrimRight(line, "\n") + "  \n")
	}
	b.WriteString("\n| " + strings.Join(compareColumns, " | ") + " |\n|" + strings.Repeat("---|", len(compareColumns)) + "\n")
	for i := range r.Files {
		cells := r.Files[i].cells()
		for j := range cells {
			cells[j] = strings.ReplaceAll(cells[j], "|", "\\|")
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	b.WriteString("\n" + r.foot())
	_, err := e.out.Write([]byte(b.String()))
	return err
}
