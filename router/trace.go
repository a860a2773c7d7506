package router

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"terrace/internal/host"
)

// TraceLine is the routing of one token, one JSON object a line of a trace.
type TraceLine struct {
	Seq   int    `json:"seq"`   // number of the text
	Topic string `json:"topic"` // free label of the text
	Pos   int    `json:"pos"`   // position in the text
	Token int    `json:"token"` // the token that was fed

	Experts [][]int32   `json:"experts"` // the choice of each layer, in selection order
	Weights [][]float32 `json:"weights"` // their weights, in the same order

	// Guess1 and Guess2 hold for each layer the ranked guesses that were made for it one and two layers earlier; a layer
	// that had none is an empty list, and a trace without guesses has neither field.
	Guess1 [][]int32 `json:"guess1,omitempty"`
	Guess2 [][]int32 `json:"guess2,omitempty"`
}

// maxTraceLine bounds one line of a trace, in bytes; a line of a hundred layers with guesses takes some 10 kB.
const maxTraceLine = 16 << 20

// check says what is wrong with a line, in words without the place. layers is the layer count so far, 0 for the first line.
func (l *TraceLine) check(layers int) error {
	if len(l.Experts) == 0 {
		return errors.New("experts is missing or empty")
	}
	if layers != 0 && len(l.Experts) != layers {
		return fmt.Errorf("experts has %d layers, earlier lines have %d", len(l.Experts), layers)
	}
	if len(l.Weights) != len(l.Experts) {
		return fmt.Errorf("weights has %d layers, experts has %d", len(l.Weights), len(l.Experts))
	}
	for i, w := range l.Weights {
		if len(w) != len(l.Experts[i]) {
			return fmt.Errorf("layer %d has %d weights for %d experts", i, len(w), len(l.Experts[i]))
		}
		for j, x := range w {
			if !finite(x) {
				return fmt.Errorf("layer %d: weight of expert %d is %v", i, l.Experts[i][j], x)
			}
		}
	}
	if err := checkIDs("experts", l.Experts); err != nil {
		return err
	}
	for _, g := range []struct {
		name string
		ids  [][]int32
	}{{"guess1", l.Guess1}, {"guess2", l.Guess2}} {
		if len(g.ids) != 0 && len(g.ids) != len(l.Experts) {
			return fmt.Errorf("%s has %d layers, experts has %d", g.name, len(g.ids), len(l.Experts))
		}
		if err := checkIDs(g.name, g.ids); err != nil {
			return err
		}
	}
	return nil
}

// checkIDs refuses negative and repeated expert numbers.
func checkIDs(name string, layers [][]int32) error {
	for i, ids := range layers {
		for j, id := range ids {
			if id < 0 {
				return fmt.Errorf("%s: layer %d names expert %d", name, i, id)
			}
			for k, other := range ids[:j] {
				if other == id {
					return fmt.Errorf("%s: layer %d names expert %d twice, at places %d and %d", name, i, id, k, j)
				}
			}
		}
	}
	return nil
}

// TraceReader reads a routing trace: a JSON object a line, plain or gzip.
type TraceReader struct {
	name   string
	close  []io.Closer
	r      *bufio.Reader
	buf    []byte
	line   int
	layers int
}

// OpenTrace opens the trace at path. Close it after use.
func OpenTrace(path string) (*TraceReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("router: trace: %w", err)
	}
	t, err := NewTraceReader(f, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	t.close = append(t.close, f)
	return t, nil
}

// NewTraceReader reads a trace from r; name stands in errors. Gzip is known by its first two bytes.
func NewTraceReader(r io.Reader, name string) (*TraceReader, error) {
	t := &TraceReader{name: name, r: bufio.NewReaderSize(r, 1<<16)}
	magic, err := t.r.Peek(2)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("router: trace %s: %w", name, err)
	}
	if string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(t.r)
		if err != nil {
			return nil, fmt.Errorf("router: trace %s: %w", name, err)
		}
		t.close = append(t.close, z)
		t.r = bufio.NewReaderSize(z, 1<<16)
	}
	return t, nil
}

// Next reads the next line into l, whose slices it reuses, and returns io.EOF after the last one. Another error names
// the file, the line and the two numbers that disagree. Empty lines are passed over; unknown fields are ignored.
func (t *TraceReader) Next(l *TraceLine) error {
	for {
		t.line++
		b, err := t.read()
		if err != nil {
			if err == io.EOF {
				return io.EOF
			}
			return fmt.Errorf("router: trace %s, line %d: %w", t.name, t.line, err)
		}
		if len(b) == 0 {
			continue
		}
		*l = TraceLine{Experts: l.Experts[:0], Weights: l.Weights[:0], Guess1: l.Guess1[:0], Guess2: l.Guess2[:0]}
		if err := json.Unmarshal(b, l); err != nil {
			return fmt.Errorf("router: trace %s, line %d: %w", t.name, t.line, err)
		}
		if err := l.check(t.layers); err != nil {
			return fmt.Errorf("router: trace %s, line %d: %w", t.name, t.line, err)
		}
		t.layers = len(l.Experts)
		return nil
	}
}

// read returns one line without its end; io.EOF only where no byte is left.
func (t *TraceReader) read() ([]byte, error) {
	t.buf = t.buf[:0]
	for {
		part, err := t.r.ReadSlice('\n')
		t.buf = append(t.buf, part...)
		if len(t.buf) > maxTraceLine {
			return nil, fmt.Errorf("%d bytes and no end of line, at most %d", len(t.buf), maxTraceLine)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(t.buf) > 0, err == nil:
			return bytes.TrimSpace(t.buf), nil
		default:
			return nil, err
		}
	}
}

// Close closes what OpenTrace and NewTraceReader opened; a reader given to NewTraceReader stays open.
func (t *TraceReader) Close() error { return closeAll(t.close) }

func closeAll(cs []io.Closer) error {
	var first error
	for _, c := range cs {
		if err := c.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// TraceWriter writes a routing trace that TraceReader reads back exactly: weights are written with as many digits as
// tell one float32 from the next. A line is built in one reused buffer and handed over whole.
type TraceWriter struct {
	name   string
	w      *bufio.Writer
	close  []io.Closer
	buf    []byte
	line   int
	layers int
	err    error
	file   *host.Replacement // of CreateTrace; nil: there is none to complete
}

// CreateTrace makes the file at path, gzip if the name ends in .gz. Close completes it and puts it in the place of an older
// one, which stays where a trace is not completed or has no lines. A pipe is written to as lines come.
func CreateTrace(path string) (*TraceWriter, error) {
	zip := strings.HasSuffix(path, ".gz")
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("router: trace: %w", err)
		}
		t := NewTraceWriter(f, path, zip)
		t.close = append(t.close, f)
		return t, nil
	}
	r, err := host.Replace(path)
	if err != nil {
		return nil, fmt.Errorf("router: trace: %w", err)
	}
	t := NewTraceWriter(r, path, zip)
	t.file = r
	return t, nil
}

// NewTraceWriter writes a trace to w, compressed if zip is set; name stands in errors.
func NewTraceWriter(w io.Writer, name string, zip bool) *TraceWriter {
	t := &TraceWriter{name: name}
	if zip {
		z := gzip.NewWriter(w)
		t.close = append(t.close, z)
		w = z
	}
	t.w = bufio.NewWriterSize(w, 1<<16)
	return t
}

// Write appends one line. A line that a reader would refuse is refused here and leaves the trace as it was; after a
// failed write every later call returns the first error.
func (t *TraceWriter) Write(l *TraceLine) error {
	if t.err != nil {
		return t.err
	}
	if err := l.check(t.layers); err != nil {
		return fmt.Errorf("router: trace %s, line %d: %w", t.name, t.line+1, err)
	}
	topic, err := json.Marshal(l.Topic)
	if err != nil {
		return fmt.Errorf("router: trace %s, line %d: topic: %w", t.name, t.line+1, err)
	}
	b := append(t.buf[:0], `{"seq":`...)
	b = strconv.AppendInt(b, int64(l.Seq), 10)
	b = append(b, `,"topic":`...)
	b = append(b, topic...)
	b = append(b, `,"pos":`...)
	b = strconv.AppendInt(b, int64(l.Pos), 10)
	b = append(b, `,"token":`...)
	b = strconv.AppendInt(b, int64(l.Token), 10)
	b = appendIDs(append(b, `,"experts":`...), l.Experts)
	b = append(b, `,"weights":[`...)
	for i, ws := range l.Weights {
		b = comma(b, i)
		b = append(b, '[')
		for j, w := range ws {
			b = comma(b, j)
			format := byte('f')
			if w > -1e-4 && w < 1e-4 && w != 0 {
				format = 'g'
			}
			b = strconv.AppendFloat(b, float64(w), format, -1, 32)
		}
		b = append(b, ']')
	}
	b = append(b, ']')
	if len(l.Guess1) != 0 {
		b = appendIDs(append(b, `,"guess1":`...), l.Guess1)
	}
	if len(l.Guess2) != 0 {
		b = appendIDs(append(b, `,"guess2":`...), l.Guess2)
	}
	t.buf = append(b, '}', '\n')
	if _, err := t.w.Write(t.buf); err != nil {
		t.err = fmt.Errorf("router: trace %s, line %d: %w", t.name, t.line+1, err)
		return t.err
	}
	t.line++
	t.layers = len(l.Experts)
	return nil
}

// Close writes what is buffered and closes what CreateTrace and NewTraceWriter opened; a writer given to NewTraceWriter
// stays open.
func (t *TraceWriter) Close() error {
	err := t.w.Flush()
	if e := closeAll(t.close); err == nil {
		err = e
	}
	if t.file != nil {
		if err == nil && t.line > 0 {
			err = t.file.Commit()
		} else {
			err = errors.Join(err, t.file.Abort())
		}
		t.file = nil
	}
	if err != nil {
		return fmt.Errorf("router: trace %s: %w", t.name, err)
	}
	return nil
}

func appendIDs(b []byte, layers [][]int32) []byte {
	b = append(b, '[')
	for i, ids := range layers {
		b = comma(b, i)
		b = append(b, '[')
		for j, id := range ids {
			b = comma(b, j)
			b = strconv.AppendInt(b, int64(id), 10)
		}
		b = append(b, ']')
	}
	return append(b, ']')
}

func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}
