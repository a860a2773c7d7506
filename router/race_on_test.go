//go:build race

package router

// raceOn: the race detector allocates, so allocation counts mean nothing under it.
const raceOn = true
