//go:build race

package tiers

// raceOn: the race detector allocates, so allocation counts mean nothing under it.
const raceOn = true
