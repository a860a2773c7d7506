package engine

import "terrace/tiers"

// defaultTableCache bounds what the pages of a model's table of rows may take; what a token needs of it is read from disk
// otherwise, a few pages.
const defaultTableCache = 64 << 20

// tableBudget is the memory for the pages of the model's table and for reads of it; 0 without a table.
func (e *Engine) tableBudget() int64 {
	d := e.model.Table()
	if d == nil {
		return 0
	}
	most := int64(defaultTableCache)
	if e.opt.tableCache > 0 {
		most = e.opt.tableCache
	}
	return min(most, tiers.TableWhole(d.Length))
}

// openRows opens the model's table of rows, which is never read whole.
func (e *Engine) openRows() error {
	d := e.model.Table()
	if d == nil {
		return nil
	}
	t, err := tiers.OpenTable(tiers.TableOptions{
		Path: e.file.Shards[d.Shard].Path, Tensor: d.Name, Offset: d.Offset, RowBytes: d.Type.RowBytes(d.Cols), Rows: d.Rows, Budget: e.budget.Table,
	})
	if err != nil {
		return err
	}
	e.rows = t
	e.model.SetTable(t.NewBatch())
	e.log.Info("table of rows", "tensor", d.Name, "rows", d.Rows, "bytes", d.Length, "cache", e.budget.Table)
	return nil
}

// TableStats is what a request took from the model's table of rows.
type TableStats struct {
	Rows  int64 `json:"rows"`  // that tokens needed
	Hits  int64 `json:"hits"`  // of these, from pages in RAM
	Reads int64 `json:"reads"` // calls to the system
	Bytes int64 `json:"bytes"` // that these read, whole pages
}
