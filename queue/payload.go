package queue

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/klauspost/compress/s2"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Payload reads the payload of a job. size is its length in bytes, 0 if the job has ended and its
// payload was deleted. A payload of more than most bytes is not read. Errors: ErrNotFound,
// ErrUnavailable.
func (q *Queue) Payload(
	ctx context.Context, tenant, id string, most int,
) (payload []byte, size int, err error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return nil, 0, err
	}
	start, err := q.store.Reads.GetRange(ctx, shard.Job(id), 0, int64(scripts.BeforePayload+maxEnvelope+most)-1).Bytes()
	if err != nil {
		return nil, 0, store.Unavailable(err)
	}
	flow, payload, size, ok := scripts.PeekPayload(start)
	if owner, _, _ := strings.Cut(flow, "/"); !ok || owner != store.EncodeName(tenant) {
		return nil, 0, ErrNotFound
	}
	whole := len(payload) == size
	_, _, inside := opened(payload)
	size -= len(payload) - len(inside)
	payload = inside
	if size = submittedSize(payload, size); size > most || size == 0 || !whole {
		return nil, size, nil
	}
	payload, err = decompress(payload)
	return payload, size, err
}

// enveloped begins a stored payload that has a content type or a path of its own. They follow, each
// after its length in two bytes, and then the payload. No JSON begins like this. Another payload
// that does gets an envelope without them.
var enveloped = []byte("\xffraw\x01")

// The most bytes of a content type, of a path, and of all that precedes the payload.
const (
	maxContentType = 255
	maxPath        = 1024
	maxEnvelope    = 5 + 2 + maxContentType + 2 + maxPath
)

// stored is the payload of a submission as it is stored.
func (q *Queue) stored(s *Submission) []byte {
	payload := q.compress(s.Payload)
	if s.ContentType == "" && s.Path == "" && !bytes.HasPrefix(payload, enveloped) {
		return payload
	}
	b := make([]byte, 0, maxEnvelope+len(payload))
	b = append(b, enveloped...)
	for _, text := range []string{s.ContentType, s.Path} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
	}
	return append(b, payload...)
}

// opened splits a stored payload, or its first maxEnvelope bytes, at its envelope.
func opened(stored []byte) (contentType, path string, payload []byte) {
	rest, ok := bytes.CutPrefix(stored, enveloped)
	if !ok {
		return "", "", stored
	}
	for _, text := range []*string{&contentType, &path} {
		if len(rest) < 2 || len(rest) < 2+int(binary.BigEndian.Uint16(rest)) {
			return "", "", stored // damaged
		}
		n := 2 + int(binary.BigEndian.Uint16(rest))
		*text, rest = string(rest[2:n]), rest[n:]
	}
	return contentType, path, rest
}

// compressed begins a stored payload that is an S2 block. No JSON begins like this. Another payload
// that does is always compressed.
var compressed = []byte("\xffs2\x01")

// compress is the payload as it is stored: as it is if it shrinks by less than an eighth.
func (q *Queue) compress(payload []byte) []byte {
	escapes := bytes.HasPrefix(payload, compressed)
	if !escapes && (q.compressOver <= 0 || len(payload) < q.compressOver) {
		return payload
	}
	stored := slices.Concat(compressed, s2.Encode(nil, payload))
	if !escapes && len(stored) > len(payload)-len(payload)/8 {
		return payload
	}
	return stored
}

// submittedSize is the size of the submitted payload, by the start and the size of the stored one.
func submittedSize(start []byte, stored int) int {
	if block, ok := bytes.CutPrefix(start, compressed); ok {
		if n, err := s2.DecodedLen(block); err == nil {
			return n
		}
	}
	return stored
}

// decompress is the payload as it was submitted.
func decompress(stored []byte) ([]byte, error) {
	block, ok := bytes.CutPrefix(stored, compressed)
	if !ok {
		return stored, nil
	}
	n, err := s2.DecodedLen(block)
	if err == nil && n > maxPayload {
		return nil, fmt.Errorf("queue: a compressed payload of %d bytes, at most %d are stored", n, maxPayload)
	}
	payload, err := s2.Decode(nil, block)
	if err != nil {
		return nil, fmt.Errorf("queue: a compressed payload: %w", err)
	}
	return payload, nil
}
