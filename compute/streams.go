package compute

// StreamEncoder has the operations of models whose residual is several streams: hyper-connections, block-sparse attention,
// n-gram embeddings.
type StreamEncoder interface{}

// StreamBackend makes what they keep of a sequence.
type StreamBackend interface{}
