// Package kernels is the CPU arithmetic on slices: matrix products over every GGUF weight type, activation quantisation,
// norms, rotary embedding, SwiGLU and attention, in portable Go and in vector code that gives the same bits.
//
// It starts no goroutines, holds no model and does not know where bytes come from: callers cut work by rows and columns
// and bring a Scratch for each worker.
//
// Every function computes one canonical order of float operations per output element (ARCHITECTURE.md, numeric
// contract). The order is written once, in the *Generic functions; the assembly repeats it lane by lane. So no result
// depends on the batch, the row cut, the worker or the instruction set.
package kernels
