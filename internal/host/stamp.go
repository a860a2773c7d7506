package host

// Stamp is what changes when somebody writes to a file or cuts it.
type Stamp struct {
	Size int64 // bytes
	Time int64 // of the last change of its content, nanoseconds since 1970
}
