// Package doctor looks at a machine and a model file and says what stands in the way of a good run, each with what to do
// about it.
//
// It changes nothing and measures nothing for longer than a moment; the measuring is `terrace calibrate`'s.
package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"terrace/engine"
	"terrace/internal/host"
	"terrace/kernels"
	"terrace/vulkan"
)

// The states of a finding.
const (
	OK      = "ok"
	Note    = "note"    // worth knowing
	Warn    = "warn"    // costs speed or memory
	Fail    = "fail"    // stands in the way
	Unknown = "unknown" // the system does not tell
)

// Finding is one thing that was looked at.
type Finding struct {
	Check string `json:"check"`
	State string `json:"state"`
	What  string `json:"what"`         // that was found
	Do    string `json:"do,omitempty"` // about it; "" where nothing is to be done

	// Measured is false where a figure that belongs here cannot be had yet; nil elsewhere.
	Measured *bool `json:"measured,omitempty"`
}

// Options say what is looked at.
type Options struct {
	Root    fs.FS          // where the system's files are read; nil: this machine's
	Model   string         // "": no model
	Engine  engine.Options // how it would be opened
	Address string         // host and port that a server would listen on; "": not looked at
	Profile string         // machine profile; ""
	Cache   string         // cache folder; ""
	// Cards lists the graphics cards that a backend knows; nil, or an error: there is no backend, or none of use.
	Cards func() ([]Card, error)
}

// Card is a graphics card.
type Card struct {
	Number  int // for --device
	Name    string
	Kind    string   // "discrete", "integrated", ...
	Memory  int64    // bytes of its own
	Refused string   // why it cannot be used; "": it can
	Lacks   []string // optional features, each with the path taken instead
	Rate    float64  // bytes of weights a second, as calibrate measured; 0: it did not
}

// examiner collects findings.
type examiner struct {
	o    Options
	root fs.FS
	out  []Finding
}

func (x *examiner) add(check, state, do, format string, a ...any) *Finding {
	x.out = append(x.out, Finding{Check: check, State: state, What: fmt.Sprintf(format, a...), Do: do})
	return &x.out[len(x.out)-1]
}

// Examine looks at everything in turn.
func Examine(ctx context.Context, o Options) []Finding {
	x := &examiner{o: o, root: o.Root}
	if x.root == nil {
		x.root = os.DirFS("/")
	}
	for _, look := range []func(){x.processor, x.memory, x.pressure, x.swap, x.huge, x.locked, x.rings, x.disk, x.card, x.port, x.profile, x.model} {
		if ctx.Err() != nil {
			break
		}
		look()
	}
	return x.out
}

// Worst is the gravest state among findings.
func Worst(list []Finding) string {
	worst := OK
	rank := map[string]int{OK: 0, Unknown: 1, Note: 2, Warn: 3, Fail: 4}
	for _, f := range list {
		if rank[f.State] > rank[worst] {
			worst = f.State
		}
	}
	return worst
}

// text is a small file of the system, "" where there is none.
func (x *examiner) text(name string) string {
	b, err := fs.ReadFile(x.root, name)
	if err != nil || len(b) > 1<<20 {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (x *examiner) processor() {
	path := kernels.Features()
	cores, logical := host.PhysicalCores(), host.LogicalCores()
	switch {
	case path != "generic":
		x.add("processor", OK, "", "kernels use %s; %d physical cores of %d logical ones", path, cores, logical)
	case runtime.GOARCH == "amd64":
		x.add("processor", Warn, "a virtual machine may hide AVX2: let it pass the host's processor through", "no AVX2: the kernels are portable code, some 30 times slower")
	default:
		x.add("processor", Warn, "expect a tenth of the speed and less", "no assembly for %s: the kernels are portable code", runtime.GOARCH)
	}
}

// gib prints bytes for people.
func gib(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func (x *examiner) sample() (s host.MemorySample, err error) {
	w := host.NewWatch(x.o.Root)
	defer w.Close()
	err = w.Read(&s)
	return s, err
}

func (x *examiner) memory() {
	s, err := x.sample()
	switch {
	case err != nil:
		x.add("memory", Fail, "give --ram", "the control group's limit cannot be read: %v", err)
		return
	case s.Total == 0:
		x.add("memory", Unknown, "give --ram", "this system does not tell its memory")
		return
	case s.Available > 0 && s.Available < s.Total/4:
		x.add("memory", Warn, "close what needs it, or expect few experts in RAM", "%s available of %s", gib(s.Available), gib(s.Total))
	default:
		x.add("memory", OK, "", "%s available of %s", gib(s.Available), gib(s.Total))
	}
	switch {
	case !s.Limited:
		x.add("control group", OK, "", "no memory limit")
	case s.Failed > 0:
		x.add("control group", Warn, "raise the limit, or give --ram some per cent below it", "limit %s, met %d times so far; %s may yet be taken", gib(s.Limit), s.Failed, gib(max(0, s.Room)))
	default:
		x.add("control group", OK, "", "limit %s, %s may yet be taken", gib(s.Limit), gib(max(0, s.Room)))
	}
}

func (x *examiner) pressure() {
	s, err := x.sample()
	if err != nil {
		return
	}
	p, who := s.Machine, "the machine"
	if s.Group.Known {
		p, who = s.Group, "the control group"
	}
	switch {
	case !p.Known:
		x.add("pressure", Unknown, "a kernel built with PSI (psi=1) lets the budget give way before the system swaps", "this system does not tell how long tasks wait for memory")
	case p.Full > 10 || p.Some > 50:
		x.add("pressure", Warn, "something else needs the memory: lower --ram or close it", "tasks of %s waited %.1f %% of the last ten seconds for memory", who, float64(p.Some)/10)
	default:
		x.add("pressure", OK, "", "tasks of %s waited %.1f %% of the last ten seconds for memory", who, float64(p.Some)/10)
	}
}

func (x *examiner) swap() {
	s, err := x.sample()
	if err != nil || s.Total == 0 {
		return
	}
	used := s.SwapTotal - s.SwapFree
	zram := strings.Contains(x.text("proc/swaps"), "/zram")
	switch {
	case s.SwapTotal == 0:
		x.add("swap", OK, "", "none")
	case used > s.SwapTotal/4 && used > 256<<20:
		x.add("swap", Warn, "the machine is short already: lower --ram; weights that swap are read twice", "%s of %s in use", gib(used), gib(s.SwapTotal))
	case zram:
		x.add("swap", Note, "weights do not compress: a budget that drives others into zram costs memory", "zram, %s of %s in use", gib(used), gib(s.SwapTotal))
	default:
		x.add("swap", OK, "", "%s of %s in use", gib(used), gib(s.SwapTotal))
	}
}

func (x *examiner) huge() {
	t := x.text("sys/kernel/mm/transparent_hugepage/enabled")
	switch {
	case t == "":
		x.add("huge pages", Unknown, "", "this system does not tell about transparent huge pages")
	case strings.Contains(t, "[never]"):
		x.add("huge pages", Warn, "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", "transparent huge pages are off: more address translations, some per cent of decoding")
	default:
		x.add("huge pages", OK, "", "transparent huge pages: %s", t)
	}
}

// registered is what the store registers with the kernel, at most.
const registered = 1 << 30

func (x *examiner) locked() {
	t := x.text("proc/self/limits")
	if t == "" {
		return
	}
	for line := range strings.Lines(t) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		if len(f) == 0 {
			break
		}
		n, err := strconv.ParseInt(f[0], 10, 64)
		switch {
		case f[0] == "unlimited":
			x.add("locked memory", OK, "", "unlimited")
		case err != nil:
			x.add("locked memory", Unknown, "", "limit %q", f[0])
		case n < registered:
			x.add("locked memory", Note, "ulimit -l unlimited, or memlock in /etc/security/limits.conf, lets reads skip a mapping each", "limit %d bytes: buffers of the store are registered with the kernel in part or not at all", n)
		default:
			x.add("locked memory", OK, "", "limit %s", gib(n))
		}
		return
	}
	x.add("locked memory", Unknown, "", "no limit is told")
}

func (x *examiner) rings() {
	if runtime.GOOS != "linux" && x.o.Root == nil {
		return
	}
	switch t := x.text("proc/sys/kernel/io_uring_disabled"); t {
	case "0":
		x.add("io_uring", OK, "", "allowed")
	case "":
		x.add("io_uring", Note, "nothing: reads fall back to a pool of threads where it is missing", "this kernel has no switch for it: older than 6.6, or no Linux")
	case "1":
		x.add("io_uring", Note, "as root: sysctl kernel.io_uring_disabled=0, or run in its group", "allowed for privileged processes only; reads fall back to a pool of threads")
	default:
		x.add("io_uring", Note, "as root: sysctl kernel.io_uring_disabled=0", "switched off; reads fall back to a pool of threads, which takes more processor time")
	}
}

func (x *examiner) card() {
	no := false
	if x.o.Cards == nil {
		x.o.Cards = func() ([]Card, error) { return nil, vulkan.ErrUnavailable }
	}
	cards, err := x.o.Cards()
	if err != nil {
		what := err.Error()
		if d, err := fs.ReadDir(x.root, "sys/class/drm"); err == nil {
			n := 0
			for _, e := range d {
				if strings.HasPrefix(e.Name(), "renderD") {
					n++
				}
			}
			if n > 0 {
				what = fmt.Sprintf("%d with a driver, unused: %s", n, what)
			}
		}
		x.add("graphics card", Note, "nothing: everything runs on the processor", "%s", what).Measured = &no
		return
	}
	for _, c := range cards {
		if c.Refused != "" {
			x.add("graphics card", Note, "a newer driver may help; everything runs on the processor", "%s, %s: %s", c.Name, gib(c.Memory), c.Refused).Measured = &no
		} else {
			speed, yes := "its speed is not measured: terrace calibrate does", false
			if c.Rate > 0 {
				speed, yes = fmt.Sprintf("it reads weights at %.0f GB/s", c.Rate/1e9), true
			}
			paths := "it has all that is of use"
			if len(c.Lacks) > 0 {
				paths = "it lacks " + strings.Join(c.Lacks, "; ")
			}
			x.add("graphics card", OK, "", "%d: %s (%s), %s; %s; %s", c.Number, c.Name, c.Kind, gib(c.Memory), speed, paths).Measured = &yes
		}
	}
}

func (x *examiner) port() {
	if x.o.Address == "" {
		return
	}
	l, err := net.Listen("tcp", x.o.Address)
	if err != nil {
		x.add("port", Warn, "choose another with serve --port", "%s cannot be listened on: %v", x.o.Address, err)
		return
	}
	l.Close()
	x.add("port", OK, "", "%s is free", x.o.Address)
}
