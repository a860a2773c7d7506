package uring

// The kernel's interface (include/uapi/linux/io_uring.h), as far as reading needs it.

const (
	sysSetup    = 425
	sysEnter    = 426
	sysRegister = 427

	offSQRing = 0
	offSQEs   = 0x10000000

	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1

	opReadFixed = 4
	opRead      = 22

	sqeFixedFile = 1 << 0

	registerFiles         = 2
	registerProbe         = 8
	registerBuffers2      = 15
	registerBuffersUpdate = 16

	rsrcSparse = 1 << 0

	probeSupported = 1 << 0
)

// sqOffsets tells where the submission ring's fields are in its mapping.
type sqOffsets struct {
	head, tail, mask, entries, flags, dropped, array, resv uint32
	userAddr                                               uint64
}

// cqOffsets tells where the completion ring's fields are.
type cqOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, resv uint32
	userAddr                                               uint64
}

// params is struct io_uring_params, 120 bytes.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	resv                                                                   [3]uint32
	sq                                                                     sqOffsets
	cq                                                                     cqOffsets
}

// rsrcRegister is struct io_uring_rsrc_register: a table of nr places.
type rsrcRegister struct {
	nr, flags uint32
	resv2     uint64
	data      uint64
	tags      uint64
}

// rsrcUpdate is struct io_uring_rsrc_update2: nr places of a table from offset on get what data points at.
type rsrcUpdate struct {
	offset, resv uint32
	data, tags   uint64
	nr, resv2    uint32
}

// sqe is one request, 64 bytes.
type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off           uint64
	addr          uint64
	len           uint32
	rwFlags       uint32
	userData      uint64
	bufIndex      uint16
	personality   uint16
	spliceFD      int32
	pad           [2]uint64
}

// cqe is one completion, 16 bytes.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// probe is struct io_uring_probe with its table of operations.
type probe struct {
	lastOp, opsLen uint8
	resv           uint16
	resv2          [3]uint32
	ops            [256]struct {
		op, resv uint8
		flags    uint16
		resv2    uint32
	}
}
