//go:build !race

package tiers

const raceOn = false
