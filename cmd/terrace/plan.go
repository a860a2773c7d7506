package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/engine"
	"terrace/gguf"
	"terrace/internal/host"
	"terrace/plan"
)

func planCommand(e env) *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "what a model would do on machines of several sizes, and on this one, before it is loaded",
		ArgsUsage: "[MODEL]",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`, any part of a split one, or ORG/REPO[:QUANT] or a URL; its header is enough"},
			&cli.StringFlag{Name: "ram", Usage: "machine memories to plan for, `LIST` of GiB or sizes (default: 8,12,16,24,32,48,64,96,128)"},
			&cli.StringFlag{Name: "reserve", Usage: "of these left to the system and other programs, `SIZE` (default: an eighth, at least 2 GiB)"},
			&cli.StringFlag{Name: "budget", Usage: "plan for what run --ram takes, `LIST` of sizes, instead of --ram"},
			&cli.StringFlag{Name: "vram", Usage: "graphics memories, `LIST` of GiB or sizes, or none (estimates, unless terrace calibrate measured the card)"},
			&cli.StringFlag{Name: "machine", Usage: "speeds of a typical machine, `NAME`, instead of this one's; list shows the names"},
			&cli.StringFlag{Name: "curve", Usage: "reuse curve from `FILE` (terrace bench cache --trace ... --curve FILE writes one)"},
			&cli.BoolFlag{Name: "compare", Usage: "the quantisations of a repository, ORG/REPO, or of a folder, side by side for this machine: which file to take"},
			&cli.Float64Flag{Name: "min-speed", Value: 5, Usage: "with --compare: tokens per second that a file must reach to be recommended, `N`"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log what a server does"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
			&cli.BoolFlag{Name: "markdown", Usage: "the table in Markdown"},
		}, append(planUseFlags(), netFlags()...)...),
		Action: func(c *cli.Context) error { return runPlan(c, e) },
	}
}

// planUseFlags say how a model that is planned for will be used.
func planUseFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "ctx-size", Aliases: []string{"c"}, Usage: "context, `N` positions (0: the smaller of the model's and 4096)"},
		&cli.IntFlag{Name: "parallel", Aliases: []string{"np"}, Value: 1, Usage: "sequences at a time, `N`"},
		&cli.IntFlag{Name: "threads", Aliases: []string{"t"}, Usage: "compute threads of this machine (0: physical cores)"},
		&cli.IntFlag{Name: "batch-size", Aliases: []string{"b"}, Usage: "prompt tokens per pass (0: 512)"},
		&cli.StringFlag{Name: "cache-type-k", Aliases: []string{"ctk"}, Value: "f16", Usage: "element `TYPE` of cached keys: f32, f16, q8_0 or q4_0"},
		&cli.StringFlag{Name: "cache-type-v", Aliases: []string{"ctv"}, Value: "f16", Usage: "element `TYPE` of cached values: f32, f16, q8_0 or q4_0"},
		&cli.StringFlag{Name: "lookahead", Value: "auto", Usage: "layers whose experts are predicted ahead: auto, 0, 1 or 2"},
	}
}

func runPlan(c *cli.Context, e env) error {
	if strings.EqualFold(c.String("machine"), "list") {
		return listMachines(c, e)
	}
	if c.Bool("json") && c.Bool("markdown") {
		return usagef("--json and --markdown exclude one another")
	}
	path, err := argModel(c, e)
	if err != nil {
		return err
	}
	if c.Bool("compare") {
		return runCompare(c, e, path)
	}
	f, far, err := openHeader(c, e, path)
	if err != nil {
		return err
	}
	p, err := planOf(c, e, f)
	if err != nil {
		return err
	}
	if far != nil {
		p.Remote, p.run = &remoteReport{far.model, far.model.Size(), far.read}, far.run
	}
	e.tell()
	switch {
	case c.Bool("json"):
		return printJSON(e, p)
	case c.Bool("markdown"):
		return planMarkdown(e, p)
	}
	return planText(e, p)
}

// argModel is the model that an argument or --model names.
func argModel(c *cli.Context, e env) (string, error) {
	path := c.String("model")
	switch {
	case c.NArg() > 1:
		return "", usagef("%d arguments, want one model", c.NArg())
	case c.NArg() == 1 && path != "":
		return "", usagef("the model is given twice: by --model and as an argument")
	case c.NArg() == 1:
		return c.Args().First(), nil
	}
	return modelPath(c, e)
}

// openCut opens a model's file, of which the header is enough: the beginning of one that is being fetched, too.
func openCut(e env, path string) (*gguf.File, error) {
	f, err := gguf.Open(path)
	if err == nil || !errors.Is(err, gguf.ErrCorrupt) {
		return f, err
	}
	r, operr := os.Open(path)
	if operr != nil {
		return nil, err
	}
	defer r.Close()
	st, operr := r.Stat()
	if operr != nil {
		return nil, err
	}
	// Its directory says where the data would end.
	f, cuterr := gguf.OpenReader(r, 1<<60, path)
	if cuterr != nil {
		return nil, err
	}
	if parts, _ := f.Metadata.UintOr("split.count", 1); parts > 1 { // the others are wanted too
		return nil, err
	}
	end := f.Shards[0].DataStart
	for i := range f.Tensors {
		end = max(end, f.Tensors[i].Extent.End())
	}
	if st.Size() >= end { // not cut, but wrong
		return nil, err
	}
	*e.notice = fmt.Sprintf("%s holds %d of %d bytes: the plan is made from its header", path, st.Size(), end)
	return f, nil
}

// planReport is what `plan --json` prints: the plan, and the row for this machine, or the one that was named.
type planReport struct {
	plan.Plan
	Here   *plan.Row     `json:"this_machine,omitempty"`
	Remote *remoteReport `json:"remote,omitempty"`

	run string // how run names the model
}

// planOf plans for the model in f as the flags say.
func planOf(c *cli.Context, e env, f *gguf.File) (*planReport, error) {
	s, err := planShape(c, e, f)
	if err != nil {
		return nil, err
	}
	m, here, err := planMachine(c, e, f)
	if err != nil {
		return nil, err
	}
	sizes, err := planSizes(c, m)
	if err != nil {
		return nil, err
	}
	p, err := plan.Make(s, m, sizes...)
	if err != nil {
		return nil, err
	}
	r := &planReport{Plan: p}
	if here.RAM > 0 {
		row := p.Row(here)
		r.Here = &row
	}
	return r, nil
}

// planShape is the model's shape with what is known of its reuse.
func planShape(c *cli.Context, e env, f *gguf.File) (s plan.Shape, err error) {
	o := engine.Options{Context: c.Int("ctx-size"), Batch: c.Int("batch-size")}
	if o.KeyType, err = parseKV("cache-type-k", c.String("cache-type-k")); err != nil {
		return s, err
	}
	if o.ValType, err = parseKV("cache-type-v", c.String("cache-type-v")); err != nil {
		return s, err
	}
	if o.Lookahead, err = parseLookahead(c.String("lookahead")); err != nil {
		return s, err
	}
	np := c.Int("parallel")
	if np < 1 || np > 1024 {
		return s, usagef("--parallel is %d, want 1 to 1024", np)
	}
	if o.Slots = np; np > 1 { // a server's
		o.CacheRAM = engine.CacheAuto
	}
	dir := cacheDir(e)
	if _, err := f.Fingerprint(); err == nil { // a part of a file has none
		o.PredictorDir = dir
	}
	if s, err = engine.ShapeOf(f, o); err != nil {
		return s, err
	}
	if path := c.String("curve"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return s, err
		}
		s.Curve, err = plan.ParseCurve(path, b)
		return s, err
	}
	s.Curve = engine.CurveOf(f, dir, logger(c, e))
	return s, nil
}

// planMachine is the machine that was named, or this one, and the row that stands for it.
func planMachine(c *cli.Context, e env, f *gguf.File) (m plan.Machine, here plan.Size, err error) {
	if c.Int("threads") < 0 || c.Int("threads") > 1024 {
		return m, here, usagef("--threads is %d, want 1 to 1024 (0: all cores)", c.Int("threads"))
	}
	if name := c.String("machine"); name != "" {
		if m, err = plan.NamedMachine(name); err != nil {
			return m, here, usageError{err}
		}
		here = plan.Size{RAM: m.RAM}
		if m.GPU != nil {
			here.VRAM = m.GPU.VRAM
		}
		return m, here, nil
	}
	threads := c.Int("threads")
	if threads == 0 {
		threads = host.PhysicalCores()
	}
	var p plan.Profile
	if dir := cacheDir(e); dir != "" {
		if p, err = plan.ReadProfile(filepath.Join(dir, "machine.json")); err != nil {
			fmt.Fprintf(e.err, "terrace: %s\n", oneLine(err.Error()))
		}
	}
	device, _ := host.Device(diskOf(c, e, f.Path)) // a model that is not here has none, and nor have some systems
	ram, _ := host.RAM()
	m = p.Machine(device, ram.Total, threads)
	m.GPU = thisGPU(&p)
	budget, err := engine.AutoRAM()
	if err != nil { // there is no row for it then
		return m, here, nil
	}
	return m, plan.Size{RAM: max(ram.Total, budget), Reserve: max(ram.Total, budget) - budget, Budget: budget}, nil
}

// planSizes are the rows that the flags ask for.
func planSizes(c *cli.Context, m plan.Machine) ([]plan.Size, error) {
	cards := []int64{0}
	if v := c.String("vram"); v != "" {
		var err error
		if cards, err = parseSizes("vram", v); err != nil {
			return nil, err
		}
	} else if m.GPU != nil {
		cards = append(cards, m.GPU.VRAM)
	}
	var reserve int64
	if v := c.String("reserve"); v != "" {
		var err error
		if reserve, err = parseSize(v); err != nil {
			return nil, usagef("--reserve: %w", err)
		}
	}
	var sizes []plan.Size
	switch {
	case c.String("budget") != "" && (c.IsSet("ram") || c.IsSet("reserve")):
		return nil, usagef("--budget is what run --ram takes: leave --ram and --reserve out")
	case c.String("budget") != "":
		list, err := parseSizes("budget", c.String("budget"))
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			sizes = append(sizes, plan.Size{Budget: b})
		}
	default:
		var list []int64
		if v := c.String("ram"); v != "" {
			var err error
			if list, err = parseSizes("ram", v); err != nil {
				return nil, err
			}
		} else {
			for _, g := range plan.NominalSizes {
				list = append(list, g<<30)
			}
		}
		for _, r := range list {
			if r <= reserve {
				return nil, usagef("--reserve of %d bytes leaves nothing of --ram %d", reserve, r)
			}
			sizes = append(sizes, plan.Size{RAM: r, Reserve: reserve})
		}
	}
	var out []plan.Size
	for _, v := range cards {
		for _, z := range sizes {
			z.VRAM = v
			out = append(out, z)
		}
	}
	return out, nil
}

// parseSizes reads a list of sizes; numbers without a unit are GiB, none is 0.
func parseSizes(flag, list string) ([]int64, error) {
	var out []int64
	for _, w := range strings.Split(list, ",") {
		w = strings.TrimSpace(w)
		if flag == "vram" && strings.EqualFold(w, "none") {
			out = append(out, 0)
			continue
		}
		if v, err := strconv.ParseFloat(w, 64); err == nil && flag != "budget" {
			w = strconv.FormatFloat(v, 'f', -1, 64) + "G"
		}
		n, err := parseSize(w)
		if err != nil {
			return nil, usagef("--%s: %w", flag, err)
		}
		if n <= 0 || n > 1<<50 {
			return nil, usagef("--%s: %q is no memory to plan for, want 1 byte to 1024 T", flag, w)
		}
		out = append(out, n)
	}
	return out, nil
}

func listMachines(c *cli.Context, e env) error {
	if c.Bool("json") {
		return printJSON(e, plan.Machines())
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "name\tRAM\tmemory\tdisk\tthreads\twhat it stands for")
	for _, m := range plan.Machines() {
		fmt.Fprintf(w, "%s\t%s\t%.0f GB/s\t%.1f GB/s\t%d\t%s\n", m.Name, gibText(m.RAM), m.Memory/1e9, m.Disk/1e9, m.Threads, strings.TrimPrefix(m.Source, "shipped figures: "))
	}
	return w.Flush()
}

// gibText prints a machine's memory as it is sold.
func gibText(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(int64(float64(n)/(1<<30)*10+0.5))/10, 'f', -1, 64) + " GiB"
}

// planHead says what the table is about.
func planHead(p *planReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s, %s), %.2f billion parameters, %.2f used by a token\n", orUnknown(oneLine(p.Model)), oneLine(p.Arch), p.Types, float64(p.ParamsTotal)/1e9, float64(p.ParamsActive)/1e9)
	if x := p.ExpertBytes; x.Total > 0 {
		fmt.Fprintf(&b, "experts %s, %d of %d a layer used, %.2f bits a weight; ", bytesText(x.Total), p.ExpertsPerToken, p.ExpertsPerLayer, p.BitsPerWeight)
	}
	fmt.Fprintf(&b, "dense weights %s", bytesText(p.DenseBytes))
	if p.TableBytes > 0 {
		fmt.Fprintf(&b, "; table %s, stays on disk", bytesText(p.TableBytes))
	}
	fmt.Fprintf(&b, "\ncontext %d", p.Context)
	if p.Parallel > 1 {
		fmt.Fprintf(&b, " x %d", p.Parallel)
	}
	fmt.Fprintf(&b, ", keys %s and values %s: %s a position", p.KeyType, p.ValType, bytesText(p.KVPerToken))
	if p.StateBytes > 0 {
		fmt.Fprintf(&b, ", state %s", bytesText(p.StateBytes))
	}
	m := p.Machine
	fmt.Fprintf(&b, "\nspeeds of %s: memory %.1f GB/s, disk %.2f GB/s, %d threads (%s)\n", m.Name, m.Memory/1e9, m.Disk/1e9, m.Threads, m.Source)
	if x := p.Remote; x != nil {
		fmt.Fprintf(&b, "%d file(s) of %s on the server, %s of them read\n", len(x.Files), bytesText(x.Size), bytesText(x.Read))
	}
	if p.ExpertBytes.Total > 0 {
		fmt.Fprintf(&b, "hit rates: %s, give or take %.0f points\n", oneLine(p.CurveSource), 100*p.CurveError)
	}
	return b.String()
}

var planColumns = []string{"RAM", "reserve", "budget", "VRAM", "in RAM", "in VRAM", "on SSD", "hit", "read/token", "decode/s", "prefill/s", "+1 GB", "limit"}

// planCells are a row's cells; of one that does not fit there are only the first.
func planCells(p *planReport, r plan.Row) []string {
	cells := []string{gibText(r.RAM), gibText(r.Reserve), fmt.Sprintf("%.2f GB", float64(r.Budget)/1e9), gibText(r.VRAM)}
	if !r.Fits {
		return append(cells, "does not fit: needs "+bytesText(r.Least))
	}
	part := func(n int) string {
		if r.Total == 0 {
			return "-"
		}
		share := float64(n) / float64(r.Total)
		return fmt.Sprintf("%d (%.0f %%, %.1f GB)", n, 100*share, share*float64(p.ExpertBytes.Total)/1e9)
	}
	return append(cells, part(r.InRAM), part(r.InVRAM), part(r.Total-r.InRAM-r.InVRAM), fmt.Sprintf("%.0f %%", 100*r.HitRate), bytesText(r.Read),
		fmt.Sprintf("%s +-%.0f %%", speedText(r.Decode), 100*r.Unsure), speedText(r.Prefill), "+"+speedText(r.NextGB), r.Limit)
}

func speedText(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// planText is the table for people; colours mark lines where a terminal shows them.
func planText(e env, p *planReport) error {
	cards := false
	for _, r := range p.Rows {
		cards = cards || r.VRAM > 0
	}
	keep := func(cells []string) []string {
		if cards {
			return cells
		}
		out := append([]string{}, cells[:3]...)
		if len(cells) <= 5 {
			return append(out, cells[4:]...)
		}
		return append(append(out, cells[4]), cells[6:]...)
	}
	rows := make([][]string, len(p.Rows))
	for i, r := range p.Rows {
		rows[i] = keep(planCells(p, r))
	}
	var b strings.Builder
	b.WriteString(planHead(p) + "\n")
	b.WriteString(table(e, keep(planColumns), rows, func(i int) string {
		switch r := &p.Rows[i]; {
		case !r.Fits:
			return "31"
		case r.Resident >= 1:
			return "32"
		}
		return ""
	}))
	if cards {
		b.WriteString("rows with a graphics card are estimates: nothing of it was measured\n")
	}
	b.WriteString(planHere(p, e.colour))
	_, err := e.out.Write([]byte(b.String()))
	return err
}

// planHere is the row for the machine itself and how to run it.
func planHere(p *planReport, colour bool) string {
	r := p.Here
	if r == nil {
		return ""
	}
	var b strings.Builder
	on, off := "", ""
	if colour {
		on, off = "\x1b[1m", "\x1b[0m"
	}
	fmt.Fprintf(&b, "\n%s%s%s: %s of memory, a budget of %s now", on, p.Machine.Name, off, gibText(r.RAM), bytesText(r.Budget))
	if !r.Fits {
		fmt.Fprintf(&b, ": %s\n", r.Reason)
		return b.String()
	}
	fmt.Fprintf(&b, "\n%.0f %% of the experts in RAM, hit rate %.0f %%, %s read a token; decode %s tokens/s +-%.0f %%, prefill %s tokens/s; limit %s; one more GB adds %s\n",
		100*r.Resident, 100*r.HitRate, bytesText(r.Read), speedText(r.Decode), 100*r.Unsure, speedText(r.Prefill), r.Limit, speedText(r.NextGB))
	verb, run := "run", p.run
	if p.Parallel > 1 {
		verb = "serve"
	}
	if run == "" {
		run = "-m " + p.Path()
	}
	fmt.Fprintf(&b, "%sterrace %s %s %s%s\n", on, verb, oneLine(run), r.Flags, off)
	return b.String()
}

// planMarkdown is the table for pages.
func planMarkdown(e env, p *planReport) error {
	var b strings.Builder
	for line := range strings.Lines(planHead(p)) {
		b.WriteString(strings.TrimRight(line, "\n") + "  \n")
	}
	b.WriteString("\n| " + strings.Join(planColumns, " | ") + " |\n|" + strings.Repeat("---|", len(planColumns)) + "\n")
	for _, r := range p.Rows {
		cells := planCells(p, r)
		for len(cells) < len(planColumns) {
			cells = append(cells, "")
		}
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], "|", "\\|")
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	if h := planHere(p, false); h != "" {
		b.WriteString(h)
	}
	_, err := e.out.Write([]byte(b.String()))
	return err
}
