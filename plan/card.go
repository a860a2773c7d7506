package plan

// A card's memory holds the dense weights of the layers, what sequences remember and the activations of a pass; experts get the
// rest, less a margin for buffers, shaders and the driver's own. The engine and the plan share this arithmetic.

// CardMargin is what of a device's memory of so many bytes is left beside all that is counted.
func CardMargin(offer int64) int64 { return min(128<<20, offer/16) }

// CardWhole reports whether a device of offer bytes, of which held are taken, has room for the dense weights and contexts of all
// layers beside a pass's activations (work), buffers, shaders and the driver's own; dense is the bytes of the weights alone.
func CardWhole(offer, held, dense, kv, work int64) bool {
	room := CardRoom(offer, held, work)
	return dense+kv+dense/16 <= room || dense+kv <= room && offer < 1<<30
}

// CardRoom is what layers may take of a device.
func CardRoom(offer, held, work int64) int64 {
	return offer - held - work - min(cardLayers, offer/8)
}

// cardLayers is what of a device's memory layers leave at most: buffers, shaders, the driver's own.
const cardLayers = 256 << 20

// Segments that package vulkan takes experts' memory in: the most that is given back at a time, what is worth an allocation, and
// how many there are at least. A test of the engine compares what comes of them.
const (
	cardSegmentMost  = 512 << 20
	cardSegmentLeast = 1 << 20
	cardSegments     = 8
)

// cardAlign is what sizes of matrices on a device are rounded up to.
const cardAlign = 256

// cardExperts is how many experts of so many bytes segments of room bytes hold.
func cardExperts(room, expert int64) int {
	if room <= 0 || expert <= 0 {
		return 0
	}
	one := (expert + 3*cardAlign - 1) / cardAlign * cardAlign // three matrices, each rounded up
	n, segment := int64(0), max(min(max(room/cardSegments, cardSegmentLeast), cardSegmentMost), one)
	for left := room; left >= one; left -= min(segment, left) {
		n += min(segment, left) / one
	}
	return int(n)
}
