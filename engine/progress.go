package engine

// LoadStep is what Open is doing.
type LoadStep string

// The steps, in their order.
const (
	LoadHeader     LoadStep = "header"
	LoadDense      LoadStep = "dense weights" // Progress in bytes
	LoadStore      LoadStep = "disk"          // which store reads experts best is found out once
	LoadVocabulary LoadStep = "vocabulary"
	LoadBackend    LoadStep = "backend" // the device's memory and programs
	LoadDone       LoadStep = "done"
)

// LoadProgress is how far Open has come. Done and Total are of the step, 0 where it has no measure.
type LoadProgress struct {
	Step        LoadStep
	Done, Total int64
}

// step tells whoever wants to know.
func (o *Options) step(s LoadStep, done, total int64) {
	if o.Progress != nil {
		o.Progress(LoadProgress{s, done, total})
	}
}

// PreloadProgress is how many of the hottest experts were done with, of those that are read before anybody asks. It goes on after
// Open; nothing waits for it.
type PreloadProgress struct{ Done, Total int }

// Preloading is how far the hottest experts are.
func (e *Engine) Preloading() PreloadProgress {
	if e.cache == nil {
		return PreloadProgress{}
	}
	done, total := e.cache.Preloading()
	return PreloadProgress{done, total}
}
