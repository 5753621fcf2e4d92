package store

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

// NewID makes an id for a job or an API key in the shard. It fails only when the system has no
// randomness.
func NewID(in ShardKeys) (string, error) {
	shard := in.Index
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

// ShardOfID returns the shard that an id names, false for an id that NewID does not make.
func (k Keyspace) ShardOfID(id string) (s ShardKeys, ok bool) {
	if len(id) != idLength || strings.TrimLeft(id, idAlphabet) != "" {
		return s, false
	}
	// 16 bytes fill 26 characters but for two bits, which are always 0.
	if strings.IndexByte(idAlphabet, id[uuidLength-1])&3 != 0 {
		return s, false
	}
	i := strings.IndexByte(idAlphabet, id[uuidLength])<<5 | strings.IndexByte(idAlphabet, id[uuidLength+1])
	if i >= len(k.shards) {
		return s, false
	}
	return k.shards[i], true
}
