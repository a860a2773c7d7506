//go:build race

package prefetch

// raceOn: the race detector allocates, so allocation counts mean nothing under it.
const raceOn = true
