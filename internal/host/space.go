package host

// Space is a range of addresses outside the Go heap whose parts take memory and give it back one by one. It can be far
// larger than the machine's RAM: only what was committed and touched counts.
type Space struct {
	Mem    []byte // page-aligned; only committed parts may be touched
	strict bool   // Linux that counts every writable page: parts become writable when they are committed
}
