package prefetch

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// runControl lets a controller run n steps whose mean time by depth is given, with relative noise, and returns the total
// time beside that of the best fixed depth.
func runControl(c *control, cost []float64, noise float64, n int, rng *rand.Rand) (took, best float64) {
	least := cost[0]
	for _, v := range cost {
		least = min(least, v)
	}
	for range n {
		t := cost[c.depth] * (1 + noise*rng.NormFloat64())
		t = max(t, cost[c.depth]/4)
		took += t
		c.took(time.Duration(t * 1e9))
	}
	return took, least * float64(n)
}

func TestControlFindsTheBestDepth(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, cost := range map[string][]float64{
		"guesses pay":       {0.30, 0.25, 0.22},
		"one layer is best": {0.30, 0.24, 0.29},
		"guesses hurt":      {0.20, 0.23, 0.26},
		"off is best":       {0.20, 0.22, 0.21},
	} {
		right := 0
		for range 20 {
			c := newControl(2)
			runControl(c, cost, 0.1, 3000, rng)
			if cost[c.best] == min(cost[0], cost[1], cost[2]) {
				right++
			}
			if why := c.reason(); c.best < 2 && why == "" || strings.Contains(why, "%!") {
				t.Errorf("%s: depth %d for the reason %q", name, c.best, why)
			}
		}
		if right < 19 {
			t.Errorf("%s: the best depth was found %d times of 20", name, right)
		}
	}
}

// What comparing costs stays small, also where it cannot tell the depths apart.
func TestControlCostsLittle(t *testing.T) {
	for name, cost := range map[string][]float64{
		"all the same": {0.2, 0.2, 0.2},
		"pay a little": {0.204, 0.202, 0.2},
		"hurt by 10 %": {0.2, 0.21, 0.22},
		"help by 30 %": {0.26, 0.22, 0.2},
	} {
		var took, best float64
		rng := rand.New(rand.NewPCG(5, 6))
		for range 60 {
			a, b := runControl(newControl(2), cost, 0.15, 2000, rng)
			took, best = took+a, best+b
		}
		if over := took/best - 1; over > 0.02 {
			t.Errorf("%s: %.2f %% slower than the best fixed depth", name, 100*over)
		}
	}
}

// A machine whose speed wanders and stalls, as a guest's does, is not a reason to guess: where nothing is to be gained, off
// is in force nearly all the time.
func TestControlBursts(t *testing.T) {
	for name, cost := range map[string][]float64{
		"all the same":  {0.02, 0.02, 0.02},
		"hurt a little": {0.02, 0.0206, 0.0212},
	} {
		rng := rand.New(rand.NewPCG(9, 10)) // the order of the map must not decide
		var took, best float64
		guessing := 0
		for range 20 {
			c, speed, stall := newControl(2), 1.0, 0
			for range 2000 {
				speed = max(0.6, min(1.6, speed*(1+0.04*rng.NormFloat64())))
				if stall--; stall < 0 && rng.Float64() < 0.02 {
					stall = 1 + rng.IntN(12)
				}
				at := func(d int) float64 {
					x := cost[d] * speed
					if stall > 0 {
						x *= 2
					}
					return x
				}
				if c.best > 0 {
					guessing++
				}
				best += at(0)
				took += at(c.depth)
				c.took(time.Duration(at(c.depth) * (1 + 0.05*rng.NormFloat64()) * 1e9))
			}
		}
		if over := took/best - 1; over > 0.01 {
			t.Errorf("%s: %.2f %% slower than off", name, 100*over)
		}
		if share := float64(guessing) / 40000; share > 0.2 {
			t.Errorf("%s: guesses were in force in %.0f %% of the steps", name, 100*share)
		}
	}
}

// A change of the machine is followed.
func TestControlTriesAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	c := newControl(2)
	runControl(c, []float64{0.2, 0.24, 0.28}, 0.1, 1500, rng)
	if c.best != 0 {
		t.Fatalf("depth %d where guesses hurt", c.best)
	}
	runControl(c, []float64{0.3, 0.22, 0.2}, 0.1, 10000, rng)
	if c.best != 2 {
		t.Errorf("depth %d after guesses began to pay", c.best)
	}
}

func TestControlAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("allocation counts mean nothing under the race detector")
	}
	c := newControl(2)
	if n := testing.AllocsPerRun(2000, func() { c.took(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// The chance from which guesses are read settles where enough of them are used, and stays within its bounds.
func TestPriceFollowsUse(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	p := price{least: firstChance}
	used, read := 0, 0
	for n := range 60000 {
		c := rng.Float64()
		if c < p.least {
			continue
		}
		hit := rng.Float64() < c-0.15 // chances that promise too much
		p.came(hit)
		if n > 10000 {
			read++
			if hit {
				used++
			}
		}
	}
	if share := float64(used) / float64(read); share < 0.8 || p.least < 0.85 {
		t.Errorf("%.3f of the guesses were used, read from a chance of %.2f on", share, p.least)
	}
	for range 1000 {
		p.came(true)
	}
	if p.least != leastChance {
		t.Errorf("after nothing but hits guesses are read from %g on, want %g", p.least, leastChance)
	}
	for range 1000 {
		p.came(false)
	}
	if p.least != mostChance {
		t.Errorf("after nothing but waste guesses are read from %g on, want %g", p.least, mostChance)
	}
}
