// Package invariant says whether this build checks at every step what must always hold, and makes memory that nobody may read
// any more unlike anything that could be read from it.
//
// It is not a test library, and it checks nothing by itself: rooms do, in branches that builds without the tag "invariants" do
// not have.
package invariant

// poison is a NaN of every float type that weights and caches have, and a block that no quantised type decodes to sense.
const poison = 0xff

// Poison overwrites memory that nobody may read before it is written anew.
func Poison(b []byte) {
	for i := range b {
		b[i] = poison
	}
}

// Poisoned says whether all of b was overwritten so and not written since.
func Poisoned(b []byte) bool {
	for _, x := range b {
		if x != poison {
			return false
		}
	}
	return true
}
