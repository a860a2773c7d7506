package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"terrace/plan"
)

// PlanGroups runs cells in processes of their own inside control groups (version 1) that cap the disk and limit memory.
type PlanGroups struct {
	Command []string // the program and its arguments, to which the cell is given as a line of JSON on standard input; it prints what it measured as one, see ProbeThrough
	Device  string   // major:minor of the disk that is capped; "": caps are refused
	Memory  bool     // limit memory too, a sixteenth above the budget
	Root    string   // "/sys/fs/cgroup" when ""
}

// probeLine is what a cell's process prints when it waits for a moment of the machine, which this process measures: the
// memory for it is none of the cell's.
const probeLine = "probe"

// ProbeThrough asks the process that started this one for moments, over its standard output and input.
func ProbeThrough(in *bufio.Reader, out io.Writer) PlanProbe {
	return func(context.Context) (x plan.Moment, err error) {
		if _, err := fmt.Fprintln(out, probeLine); err != nil {
			return x, err
		}
		line, err := in.ReadBytes('\n')
		if err != nil {
			return x, fmt.Errorf("who measures the machine does not answer: %w", err)
		}
		return x, json.Unmarshal(line, &x)
	}
}

// Run measures a cell.
func (g *PlanGroups) Run(ctx context.Context, c PlanCell, probe PlanProbe) (m PlanMeasured, err error) {
	root := g.Root
	if root == "" {
		root = "/sys/fs/cgroup"
	}
	var groups []string
	join := func(controller string, files map[string]string) error {
		dir := filepath.Join(root, controller, fmt.Sprintf("terrace-plan-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		groups = append(groups, dir)
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	defer func() {
		for _, dir := range groups {
			// The kernel may take a moment to let go of the last process.
			for range 50 {
				if rerr := os.Remove(dir); rerr == nil || errors.Is(rerr, os.ErrNotExist) || !errors.Is(rerr, syscall.EBUSY) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	if c.Cap > 0 {
		if g.Device == "" {
			return m, errors.New("a cap of the disk, and no device is named")
		}
		if err := join("blkio", map[string]string{"blkio.throttle.read_bps_device": fmt.Sprintf("%s %.0f", g.Device, c.Cap)}); err != nil {
			return m, err
		}
	}
	if g.Memory {
		limit := c.Budget + max(c.Budget/16, 64<<20)
		if err := join("memory", map[string]string{"memory.limit_in_bytes": strconv.FormatInt(limit, 10)}); err != nil {
			return m, err
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return m, err
	}
	// The shell joins the groups before it becomes the program, so that no read is outside of them.
	script := `for g in $TERRACE_GROUPS; do echo $$ > "$g/cgroup.procs" || exit 1; done; exec "$@"`
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "sh"}, g.Command...)...)
	cmd.Env = append(os.Environ(), "TERRACE_GROUPS="+strings.Join(groups, " "))
	var errs strings.Builder
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		return m, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return m, err
	}
	if err := cmd.Start(); err != nil {
		return m, err
	}
	got, err := converse(ctx, bufio.NewScanner(out), in, text, probe)
	err = errors.Join(err, in.Close(), cmd.Wait())
	if err != nil {
		return m, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	if err := json.Unmarshal(got, &m); err != nil {
		return m, fmt.Errorf("the run printed %q: %w", got, err)
	}
	return m, nil
}

// converse gives a process its cell and answers its probes; got is its last line.
func converse(ctx context.Context, lines *bufio.Scanner, in io.Writer, cell []byte, probe PlanProbe) (got []byte, err error) {
	lines.Buffer(nil, 1<<20)
	// A process that ended early says more itself than a broken pipe does.
	broken := func(err error) error {
		if errors.Is(err, syscall.EPIPE) {
			return nil
		}
		return err
	}
	if _, err := in.Write(append(cell, '\n')); broken(err) != nil {
		return nil, err
	}
	for lines.Scan() {
		if lines.Text() != probeLine {
			got = slices.Clone(lines.Bytes())
			continue
		}
		x, err := probe(ctx)
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(x)
		if err != nil {
			return nil, err
		}
		if _, err := in.Write(append(b, '\n')); broken(err) != nil {
			return nil, err
		}
	}
	return got, lines.Err()
}

// DeviceNumber is the major:minor of the whole disk at a device path such as /dev/vda.
func DeviceNumber(path string) (string, error) {
	name := filepath.Base(path)
	b, err := os.ReadFile(filepath.Join("/sys/class/block", name, "dev"))
	if err != nil {
		return "", fmt.Errorf("%s is no disk of this system: %w", path, err)
	}
	return strings.TrimSpace(string(b)), nil
}
