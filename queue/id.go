package queue

import (
	"encoding/base32"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// A job id is a UUIDv7 in 26 characters of base 32, then the shard in two. So a job is found
// without an index, and ids sort by their time.
const (
	idAlphabet  = "0123456789abcdefghijklmnopqrstuv"
	uuidLength  = 26
	shardLength = 2
	idLength    = uuidLength + shardLength
)

var idEncoding = base32.NewEncoding(idAlphabet).WithPadding(base32.NoPadding)

// newID makes an id for a job of the shard. It fails only when the system has no randomness.
func newID(shard int) (string, error) {
	u, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make a job id: %w", err)
	}
	id := make([]byte, idLength)
	idEncoding.Encode(id, u[:])
	id[uuidLength] = idAlphabet[shard>>5]
	id[uuidLength+1] = idAlphabet[shard&31]
	return string(id), nil
}

// shardOfID is the shard an id names, false when it is no id that newID makes for one of n shards.
func shardOfID(id string, n int) (int, bool) {
	if len(id) != idLength || strings.TrimLeft(id, idAlphabet) != "" {
		return 0, false
	}
	// 16 bytes fill 26 characters but for two bits, which are always 0.
	if strings.IndexByte(idAlphabet, id[uuidLength-1])&3 != 0 {
		return 0, false
	}
	shard := strings.IndexByte(idAlphabet, id[uuidLength])<<5 | strings.IndexByte(idAlphabet, id[uuidLength+1])
	return shard, shard < n
}
