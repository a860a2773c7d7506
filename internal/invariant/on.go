//go:build invariants

package invariant

// On says whether this build checks.
const On = true
