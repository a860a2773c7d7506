package promptstore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
)

// Kind says what an entry's bytes are.
type Kind uint8

// The kinds.
const (
	Rows     Kind = 1 // what a run of positions left behind
	Snapshot Kind = 2 // what stands for all positions before one
)

// Class says how likely a snapshot is to be wanted again.
type Class uint8

// The classes, from the least likely on.
const (
	Interval Class = iota // one of those that are made from time to time
	Tail                  // shortly before the end of a prompt, where the next one often parts from it
	Turn                  // the end of a turn, or a place where prompts have parted
)

// ID names an entry by its content's origin: the space, the entry it continues and the tokens.
type ID [16]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// PieceTokens is the most tokens of an entry.
const PieceTokens = 256

// An entry's encoding, little-endian:
//
//	0    "TRPREFIX"
//	8    version, 32 bits
//	12   kind, flags (1: with windows), class, 0
//	16   space, 32 bytes
//	48   ID, 16 bytes
//	64   ID of the entry it continues; zeros at position 0
//	80   first position, position after the last one; equal for a snapshot
//	88   bytes of the payload, 64 bits
//	96   CRC-32C of the payload
//	100  number of tokens
//	104  CRC-32C of what stands before it and of the tokens
//	108  0
//	112  tokens, 32 bits each
//	     payload
const (
	magic       = "TRPREFIX"
	version     = 1
	headBytes   = 112
	maxHead     = headBytes + 4*PieceTokens
	maxPosition = 1 << 30
	maxPayload  = 1 << 40
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged marks bytes that are no entry, or not the one that was looked for.
var ErrDamaged = errors.New("damaged or foreign")

// head is an entry without its payload.
type head struct {
	Kind       Kind
	Windowed   bool
	Class      Class
	Space      [32]byte
	ID, Parent ID
	Start, End int
	Size       int64
	Sum        uint32
	Tokens     []int32
}

// encoded is the size of the head in bytes.
func (h *head) encoded() int { return headBytes + 4*len(h.Tokens) }

// id is what the entry must be called.
func (h *head) id() ID {
	b := make([]byte, 0, 64+4*len(h.Tokens))
	b = append(b, byte(h.Kind))
	b = append(b, h.Space[:]...)
	b = append(b, h.Parent[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Start))
	for _, t := range h.Tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	sum := sha256.Sum256(b)
	return ID(sum[:16])
}

func (h *head) encode() []byte {
	b := make([]byte, headBytes, h.encoded())
	copy(b, magic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], version)
	b[12], b[14] = byte(h.Kind), byte(h.Class)
	if h.Windowed {
		b[13] = 1
	}
	copy(b[16:], h.Space[:])
	copy(b[48:], h.ID[:])
	copy(b[64:], h.Parent[:])
	le.PutUint32(b[80:], uint32(h.Start))
	le.PutUint32(b[84:], uint32(h.End))
	le.PutUint64(b[88:], uint64(h.Size))
	le.PutUint32(b[96:], h.Sum)
	le.PutUint32(b[100:], uint32(len(h.Tokens)))
	for _, t := range h.Tokens {
		b = le.AppendUint32(b, uint32(t))
	}
	le.PutUint32(b[104:], headSum(b))
	return b
}

func headSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:104], castagnoli), castagnoli, b[headBytes:])
}

// decodeHead reads a head that begins b, which may go on behind it. Errors wrap ErrDamaged.
func decodeHead(b []byte) (h head, err error) {
	bad := func(format string, args ...any) (head, error) {
		return head{}, fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)
	}
	if len(b) < headBytes || string(b[:8]) != magic {
		return bad("no head of an entry in %d bytes", len(b))
	}
	le := binary.LittleEndian
	if v := le.Uint32(b[8:]); v != version {
		return bad("version %d, want %d", v, version)
	}
	n := le.Uint32(b[100:])
	if n > PieceTokens || len(b) < headBytes+4*int(n) {
		return bad("%d tokens in %d bytes, at most %d", n, len(b), PieceTokens)
	}
	b = b[:headBytes+4*int(n)]
	if got, want := headSum(b), le.Uint32(b[104:]); got != want {
		return bad("the head's checksum is %08x, it says %08x", got, want)
	}
	h = head{Kind: Kind(b[12]), Windowed: b[13] == 1, Class: Class(b[14]), Space: [32]byte(b[16:48]), ID: ID(b[48:64]), Parent: ID(b[64:80]),
		Start: int(le.Uint32(b[80:])), End: int(le.Uint32(b[84:])), Sum: le.Uint32(b[96:])}
	size := le.Uint64(b[88:])
	switch {
	case h.Kind != Rows && h.Kind != Snapshot, b[13] > 1, h.Class > Turn, b[15] != 0, le.Uint32(b[108:]) != 0:
		return bad("kind %d, flags %d, class %d", b[12], b[13], b[14])
	case size == 0 || size > maxPayload:
		return bad("a payload of %d bytes", size)
	case h.Start > maxPosition || h.End > maxPosition:
		return bad("positions %d to %d", h.Start, h.End)
	case h.Kind == Rows && (h.End-h.Start != int(n) || n == 0), h.Kind == Snapshot && (h.End != h.Start || n != 0 || h.Start == 0 || h.Windowed):
		return bad("positions %d to %d with %d tokens", h.Start, h.End, n)
	case (h.Start == 0) != (h.Parent == ID{}):
		return bad("position %d continues %s", h.Start, h.Parent)
	}
	h.Size = int64(size)
	h.Tokens = make([]int32, n)
	for i := range h.Tokens {
		h.Tokens[i] = int32(le.Uint32(b[headBytes+4*i:]))
	}
	if h.id() != h.ID {
		return bad("it calls itself %s, its content is %s", h.ID, h.id())
	}
	return h, nil
}
