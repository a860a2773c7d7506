package compute

// LatentEncoder has what attention over a compressed cache needs besides Attention.
type LatentEncoder interface{}
