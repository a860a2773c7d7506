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
	"time"
)

// fioRunner reads random blocks of the same files with fio: direct, through io_uring.
type fioRunner struct {
	program string
	files   []string
	block   int64
	window  time.Duration
	plain   bool // without registered buffers, which it was not allowed
}

// fioResult is one run.
type fioResult struct {
	rate  float64 // bytes per second
	bytes int64
	cpu   time.Duration // processor time of fio's job
}

// fioDepths are tried to find the best.
var fioDepths = []int{1, 2, 4, 8, 16, 32}

// choose finds fio's best queue depth: the one with the highest rate, two rounds each.
func (f *fioRunner) choose(ctx context.Context, r *DiskReport, progress func(string)) error {
	out, err := exec.CommandContext(ctx, f.program, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", f.program, err)
	}
	r.FioVersion = strings.TrimSpace(string(out))
	best := make([]float64, len(fioDepths))
	for range 2 {
		for i, depth := range fioDepths {
			x, err := f.run(ctx, depth)
			if err != nil {
				return err
			}
			best[i] = max(best[i], x.rate)
		}
	}
	most := 0.0
	for i, depth := range fioDepths {
		r.FioDepths = append(r.FioDepths, FioDepth{depth, best[i]})
		if best[i] > most {
			most, r.FioDepth = best[i], depth
		}
	}
	progress(fmt.Sprintf("fio reads fastest at depth %d", r.FioDepth))
	return nil
}

func (f *fioRunner) run(ctx context.Context, depth int) (fioResult, error) {
	x, err := f.once(ctx, depth)
	if err != nil && !f.plain && ctx.Err() == nil {
		f.plain = true
		x, err = f.once(ctx, depth)
	}
	return x, err
}

// once is one run of fio.
func (f *fioRunner) once(ctx context.Context, depth int) (x fioResult, err error) {
	names := make([]string, len(f.files))
	for i, p := range f.files {
		names[i] = strings.ReplaceAll(p, ":", `\:`) // fio separates names by colons
	}
	args := []string{"--name=terrace", "--filename=" + strings.Join(names, ":"), "--rw=randread", "--readonly", "--direct=1", "--ioengine=io_uring",
		"--bs=" + strconv.FormatInt(f.block, 10), "--iodepth=" + strconv.Itoa(depth), "--time_based",
		fmt.Sprintf("--runtime=%dms", f.window.Milliseconds()), "--norandommap", "--randrepeat=0", "--invalidate=0", "--output-format=json"}
	if !f.plain {
		args = append(args, "--fixedbufs=1", "--registerfiles=1")
	}
	cmd := exec.CommandContext(ctx, f.program, args...)
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Run(); err != nil {
		return x, fmt.Errorf("%s: %w: %s", f.program, err, lastLine(msg.String()+out.String()))
	}
	var doc struct {
		Jobs []struct {
			Error      int     `json:"error"`
			JobRuntime int64   `json:"job_runtime"` // ms
			UsrCPU     float64 `json:"usr_cpu"`     // per cent
			SysCPU     float64 `json:"sys_cpu"`
			Read       struct {
				IOBytes int64 `json:"io_bytes"`
				BWBytes int64 `json:"bw_bytes"`
			} `json:"read"`
		} `json:"jobs"`
	}
	text := out.Bytes()
	if i := bytes.IndexByte(text, '{'); i > 0 { // notes may come before the document
		text = text[i:]
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return x, fmt.Errorf("%s: its report cannot be read: %w", f.program, err)
	}
	if len(doc.Jobs) != 1 {
		return x, fmt.Errorf("%s: %d jobs in its report, want 1", f.program, len(doc.Jobs))
	}
	j := &doc.Jobs[0]
	if j.Error != 0 || j.Read.BWBytes <= 0 {
		return x, errors.New(f.program + ": it read nothing: " + lastLine(msg.String()))
	}
	x.rate, x.bytes = float64(j.Read.BWBytes), j.Read.IOBytes
	x.cpu = time.Duration((j.UsrCPU + j.SysCPU) / 100 * float64(j.JobRuntime) * float64(time.Millisecond))
	return x, nil
}

// lastLine is the last line of text that is not empty.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
