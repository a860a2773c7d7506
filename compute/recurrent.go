package compute

// RecurrentEncoder has the operations of layers whose state each token changes for good: short convolutions, gated
// DeltaNet, Mamba-2.
type RecurrentEncoder interface{}

// RecurrentBackend makes their states.
type RecurrentBackend interface{}
