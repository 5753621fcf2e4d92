// Package sealed encrypts what clients wrote before it is stored, and decrypts it.
//
// The keys of a file wrap data keys (envelope encryption). Data keys are stored wrapped in one hash
// of Redis, and a sealed text names its data key by four bytes. Both kinds of keys are of AES-256
// in GCM, whose random nonces the standard library makes. What a text is bound to (its tenant, its
// id and its place) is authenticated with it, so a text that was moved elsewhere is refused.
package sealed

import (
	"context"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/internal/store"
)

// mark begins each sealed text. Neither JSON nor any UTF-8 begins like this.
const mark = "\xff\x01"

// Overhead is by how many bytes a sealed text is longer than what was sealed: the mark, the data
// key's id, the nonce and the tag.
const Overhead = len(mark) + 4 + 12 + 16

// Place is the kind of place where a text is stored. It is authenticated, so its names must not
// change.
type Place string

// The places.
const (
	Texts    Place = "texts"    // the type and the trace parent of a job
	Payload  Place = "payload"  // of a job
	Envelope Place = "envelope" // content type, path and headers of a job
	Callback Place = "callback" // URL of a job
	Result   Place = "result"   // of a job without an answer
	Answered Place = "answered" // result of a job with an answer
	Answer   Place = "answer"   // a segment of it
	Part     Place = "part"     // of an answer that comes
	Task     Place = "task"     // body of a callback's task
	TaskURL  Place = "task url" // its URL
	// OwnCallbacks is the secrets and endpoints of callbacks of a tenant.
	OwnCallbacks Place = "own callbacks"
)

// Errors of Open.
var (
	// ErrNoKey means that this process does not have the key of a text.
	ErrNoKey = store.ErrSealed
	// ErrRefused means that a text is not what was sealed for its place.
	ErrRefused = errors.New("an encrypted text was damaged, or was stored for another place")
)

// Box seals and opens texts. A nil Box seals nothing, and opens what is not sealed.
type Box struct {
	store   *store.Store
	from    Source
	writes  bool // false: it opens, and seals nothing
	process string
	log     *slog.Logger

	stop context.CancelFunc
	done sync.WaitGroup

	current atomic.Pointer[dataKey]
	left    atomic.Int64 // messages that this process may seal with the current data key
	mac     atomic.Pointer[macKey]
	keys    sync.Map // uint32 → *dataKey

	mu      sync.Mutex // of a refresh, and of what follows
	ring    keyring
	missed  map[uint32]time.Time // data keys that were not found, and when
	ranAt   time.Time            // when the program for keys ran last
	printed keyring              // by it
	failed  error                // of its last run
	warned  string               // the last complaint about the source
}

// dataKey is a key that encrypts texts.
type dataKey struct {
	id   uint32
	raw  []byte
	aead cipher.AEAD
	born time.Time
}

// macKey makes the digests of a store.
type macKey struct {
	raw  []byte
	born time.Time
}

// Is reports whether a text is sealed.
func Is[T string | []byte](text T) bool {
	return len(text) >= len(mark) && string(text[:len(mark)]) == mark
}

// bound encodes what a text is bound to: each part after its length.
func bound(place Place, tenant, id string) []byte {
	b := make([]byte, 0, 3*2+len(place)+len(tenant)+len(id))
	for _, part := range [...]string{string(place), tenant, id} {
		b = binary.BigEndian.AppendUint16(b, uint16(len(part)))
		b = append(b, part...)
	}
	return b
}

// Sealing reports whether the box seals what is stored from now on.
func (b *Box) Sealing() bool { return b != nil && b.writes }

// Seal encrypts a text for its place. tenant is named as in keys.
func (b *Box) Seal(place Place, tenant, id string, text []byte) []byte {
	if !b.Sealing() {
		return text
	}
	k := b.current.Load()
	b.left.Add(-1)
	out := make([]byte, len(mark)+4, Overhead+len(text))
	copy(out, mark)
	binary.BigEndian.PutUint32(out[len(mark):], k.id)
	return k.aead.Seal(out, nil, text, bound(place, tenant, id))
}

// Open decrypts a text from its place; a text that is not sealed is returned as it is. Errors:
// ErrNoKey, ErrRefused.
func (b *Box) Open(place Place, tenant, id string, text []byte) ([]byte, error) {
	if !Is(text) {
		return text, nil
	}
	if len(text) < Overhead {
		return nil, ErrRefused
	}
	n := binary.BigEndian.Uint32(text[len(mark):])
	k, err := b.keyOf(n)
	if err != nil {
		return nil, err
	}
	out, err := k.aead.Open(nil, nil, text[len(mark)+4:], bound(place, tenant, id))
	if err != nil {
		return nil, ErrRefused
	}
	return out, nil
}

// SealText is Seal for a string.
func (b *Box) SealText(place Place, tenant, id, text string) string {
	if text == "" || !b.Sealing() {
		return text
	}
	return string(b.Seal(place, tenant, id, []byte(text)))
}

// OpenText is Open for a string.
func (b *Box) OpenText(place Place, tenant, id, text string) (string, error) {
	if !Is(text) {
		return text, nil
	}
	opened, err := b.Open(place, tenant, id, []byte(text))
	return string(opened), err
}

// Sum returns a digest of texts that only the processes of this store can make: 128 bits of an
// HMAC in 22 characters. It stays the same when keys are rotated. A nil Box returns
// store.ShortHash.
func (b *Box) Sum(purpose string, parts ...string) string {
	if b == nil {
		return store.ShortHash(parts...)
	}
	h := hmac.New(sha256.New, b.mac.Load().raw)
	length := make([]byte, 8)
	for i := -1; i < len(parts); i++ {
		part := purpose
		if i >= 0 {
			part = parts[i]
		}
		binary.BigEndian.PutUint64(length, uint64(len(part)))
		_, _ = h.Write(length) // never fails
		_, _ = h.Write([]byte(part))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}

// Since is when the store got its first keys, zero for a nil Box.
func (b *Box) Since() time.Time {
	if b == nil {
		return time.Time{}
	}
	return b.mac.Load().born
}

// keyOf returns a data key. One that is not known is read from the store, at most once a second.
func (b *Box) keyOf(id uint32) (*dataKey, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: neither codec.key_file nor codec.command is set", ErrNoKey)
	}
	if k, ok := b.keys.Load(id); ok {
		return k.(*dataKey), nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if k, ok := b.keys.Load(id); ok {
		return k.(*dataKey), nil
	}
	if time.Since(b.missed[id]) > time.Second {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := b.refresh(ctx); err != nil {
			return nil, store.Unavailable(err)
		}
		if k, ok := b.keys.Load(id); ok {
			return k.(*dataKey), nil
		}
		if len(b.missed) > 1000 {
			clear(b.missed)
		}
		b.missed[id] = time.Now()
	}
	return nil, fmt.Errorf("%w: data key %08x", ErrNoKey, id)
}
