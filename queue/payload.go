package queue

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/klauspost/compress/s2"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Payload is what a job delivers, until it has ended.
type Payload struct {
	Bytes   []byte            // nil if there are more than were to be read
	Size    int               // of the whole payload; 0 if the job has ended and its payload was deleted
	Headers map[string]string // that its deliveries have; nil for none
}

// Payload reads the payload of a job, unless it has more than most bytes. Errors: ErrNotFound,
// ErrUnavailable.
func (q *Queue) Payload(ctx context.Context, tenant, id string, most int) (p Payload, err error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return p, err
	}
	start, err := q.store.Reads.GetRange(ctx, shard.Job(id), 0, int64(scripts.BeforePayload+maxEnvelope+most)-1).Bytes()
	if err != nil {
		return p, store.Unavailable(err)
	}
	flow, stored, size, ok := scripts.PeekPayload(start)
	if owner, _, _ := strings.Cut(flow, "/"); !ok || owner != store.EncodeName(tenant) {
		return p, ErrNotFound
	}
	whole := len(stored) == size
	e, inside := opened(stored)
	p.Headers = e.headers
	size -= len(stored) - len(inside)
	if p.Size = submittedSize(inside, size); p.Size > most || p.Size == 0 || !whole {
		return p, nil
	}
	p.Bytes, err = decompress(inside)
	return p, err
}

// enveloped begins a stored payload that has a content type, a path or headers of its own. They
// follow as two texts, each after its length in two bytes, and then the payload. No JSON begins
// like this. Another payload that does gets an envelope without them.
//
// The second text is the path and, each after a line feed, which no path has, the headers. Workers
// that know no headers make a dead letter of such a job, because of its path.
var enveloped = []byte("\xffraw\x01")

// envelope is what a job has beside its payload.
type envelope struct {
	contentType, path string
	headers           map[string]string
}

// The most bytes of a content type, of a path, and of all that precedes the payload.
const (
	maxContentType = 255
	maxPath        = 1024
	maxHeaders     = httpmsg.MaxJobHeaderBytes + 2*httpmsg.MaxJobHeaders
	maxEnvelope    = 5 + 2 + maxContentType + 2 + maxPath + maxHeaders
)

// stored is the payload of a submission as it is stored.
func (q *Queue) stored(s *Submission) []byte {
	payload := q.compress(s.Payload)
	if !s.enveloped() && !bytes.HasPrefix(payload, enveloped) {
		return payload
	}
	target := s.Path
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		target += "\n" + name + ":" + s.Headers[name]
	}
	b := make([]byte, 0, len(enveloped)+2+len(s.ContentType)+2+len(target)+len(payload))
	b = append(b, enveloped...)
	for _, text := range []string{s.ContentType, target} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
	}
	return append(b, payload...)
}

// enveloped reports whether the submission has anything beside its payload.
func (s *Submission) enveloped() bool {
	return s.ContentType != "" || s.Path != "" || len(s.Headers) > 0
}

// opened splits a stored payload, or its first maxEnvelope bytes, at its envelope.
func opened(stored []byte) (e envelope, payload []byte) {
	rest, ok := bytes.CutPrefix(stored, enveloped)
	if !ok {
		return e, stored
	}
	target := ""
	for _, text := range []*string{&e.contentType, &target} {
		if len(rest) < 2 || len(rest) < 2+int(binary.BigEndian.Uint16(rest)) {
			return envelope{}, stored // damaged
		}
		n := 2 + int(binary.BigEndian.Uint16(rest))
		*text, rest = string(rest[2:n]), rest[n:]
	}
	path, lines, more := strings.Cut(target, "\n")
	if e.path = path; more {
		e.headers = map[string]string{}
		for line := range strings.SplitSeq(lines, "\n") {
			name, value, _ := strings.Cut(line, ":")
			e.headers[name] = value
		}
	}
	return e, rest
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
