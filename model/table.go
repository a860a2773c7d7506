package model

import (
	"context"
	"fmt"

	"terrace/gguf"
)

// TableDesc is a tensor of which a token needs a few rows only, known from token ids: Rows rows of Cols elements. It is no
// part of Dense, since it may be far larger than memory.
type TableDesc struct {
	Name string
	gguf.Extent
	Type gguf.Type
	Cols int
	Rows int64
}

// Table brings rows of such a tensor. Like Source it is declared here and answered by whoever has the bytes. One question at
// a time: Want, Rows, Release.
type Table interface {
	// Want asks for rows, in any order and with repeats, at the beginning of a forward pass, and returns at once. The slice is
	// valid during the call.
	Want(rows []int64) error
	// Rows waits for them. They come in the order in which they were asked for and are valid until Release.
	Rows(ctx context.Context) ([][]byte, error)
	// Release ends the question, whether the rows have come or not.
	Release()
}

// Table is the tensor that SetTable must bring rows of; nil where the model has none.
func (m *Model) Table() *TableDesc { return m.table }

// SetTable gives the model the rows of its table. It is called after Bind and before any Forward.
func (m *Model) SetTable(t Table) {
	if m.table == nil || m.backend == nil {
		panic("model: SetTable before Bind, or of a model without a table")
	}
	m.rows = t
}

// residentTable is a Table in memory.
type residentTable struct {
	data []byte
	size int
	rows [][]byte
}

// NewResidentTable is a Table whose bytes are all in memory, for tests and for tables that are small.
func NewResidentTable(d *TableDesc, data []byte) (Table, error) {
	if int64(len(data)) != d.Length {
		return nil, fmt.Errorf("tensor %q: %d bytes, want %d", d.Name, len(data), d.Length)
	}
	return &residentTable{data: data, size: d.Type.RowBytes(d.Cols)}, nil
}

// Want implements Table.
func (t *residentTable) Want(rows []int64) error {
	t.rows = t.rows[:0]
	for _, r := range rows {
		at := int(r) * t.size
		t.rows = append(t.rows, t.data[at:at+t.size])
	}
	return nil
}

// Rows implements Table.
func (t *residentTable) Rows(context.Context) ([][]byte, error) { return t.rows, nil }

// Release implements Table.
func (t *residentTable) Release() {}
