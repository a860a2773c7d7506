//go:build !race

package prefetch

const raceOn = false
