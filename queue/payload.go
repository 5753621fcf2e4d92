package queue

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/klauspost/compress/s2"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
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
	e, inside, err := openEnvelope(q.box, store.EncodeName(tenant), id, stored)
	if err != nil {
		return p, unopened(err)
	}
	p.Headers = e.headers
	size -= len(stored) - len(inside)
	if p.Size = e.submittedSize(inside, size); p.Size > most || p.Size == 0 || !whole {
		return p, nil
	}
	p.Bytes, err = e.open(q.box, store.EncodeName(tenant), id, inside)
	return p, unopened(err)
}

// unopened is the error of a text that could not be decrypted, as the methods of Queue return it.
func unopened(err error) error {
	if errors.Is(err, sealed.ErrRefused) {
		return fmt.Errorf("%w: %w", ErrScript, err)
	}
	return err
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
	clear             bool // what follows it is not encrypted, whatever it begins with
}

// The most bytes of a content type, of a path, and of all that precedes the payload.
const (
	maxContentType = 255
	maxPath        = 1024
	maxHeaders     = httpmsg.MaxJobHeaderBytes + 2*httpmsg.MaxJobHeaders
	maxEnvelope    = 5 + 2 + maxContentType + 2 + maxPath + maxHeaders + 2*(sealed.Overhead+binary.MaxVarintLen32)
)

// sealedEnvelope begins a stored payload with an envelope whose texts are sealed. They follow after
// their length in two bytes, and then the payload.
var sealedEnvelope = []byte("\xffraw\x02")

// sealedBlock begins a sealed payload that is compressed. Its submitted size follows as a varint,
// and then the sealed S2 block.
var sealedBlock = []byte("\xffs2\x02")

// stored is the payload of a submission as it is stored. tenant is named as in keys.
func (q *Queue) stored(s *Submission, tenant string) []byte {
	payload := q.compress(s.Payload)
	if q.box.Sealing() {
		return q.sealPayload(s, tenant, payload)
	}
	// What begins like a sealed payload gets an envelope, too.
	if !s.enveloped() && (!bytes.HasPrefix(payload, []byte{0xff}) || bytes.HasPrefix(payload, compressed)) {
		return payload
	}
	texts := s.envelopeTexts()
	b := make([]byte, 0, len(enveloped)+len(texts)+len(payload))
	return append(append(append(b, enveloped...), texts...), payload...)
}

// sealPayload encrypts a payload, which may be compressed, and its envelope.
func (q *Queue) sealPayload(s *Submission, tenant string, payload []byte) []byte {
	var b []byte
	if s.enveloped() {
		texts := q.box.Seal(sealed.Envelope, tenant, s.ID, s.envelopeTexts())
		b = append(binary.BigEndian.AppendUint16(append(b, sealedEnvelope...), uint16(len(texts))), texts...)
	}
	if block, ok := bytes.CutPrefix(payload, compressed); ok {
		b = binary.AppendUvarint(append(b, sealedBlock...), uint64(len(s.Payload)))
		payload = block
	}
	sealedPayload := q.box.Seal(sealed.Payload, tenant, s.ID, payload)
	if len(b) == 0 {
		return sealedPayload
	}
	return append(b, sealedPayload...)
}

// envelopeTexts encodes what the submission has beside its payload.
func (s *Submission) envelopeTexts() []byte {
	target := s.Path
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		target += "\n" + name + ":" + s.Headers[name]
	}
	b := make([]byte, 0, 2+len(s.ContentType)+2+len(target))
	for _, text := range []string{s.ContentType, target} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
	}
	return b
}

// enveloped reports whether the submission has anything beside its payload.
func (s *Submission) enveloped() bool {
	return s.ContentType != "" || s.Path != "" || len(s.Headers) > 0
}

// openPayload returns a payload as it was submitted, with its envelope.
func openPayload(box *sealed.Box, tenant, id string, stored []byte) (e envelope, payload []byte, err error) {
	e, inside, err := openEnvelope(box, tenant, id, stored)
	if err == nil {
		payload, err = e.open(box, tenant, id, inside)
	}
	return e, payload, err
}

// openEnvelope splits a stored payload, or its first maxEnvelope bytes, at its envelope.
func openEnvelope(box *sealed.Box, tenant, id string, stored []byte) (e envelope, inside []byte, err error) {
	if rest, ok := bytes.CutPrefix(stored, sealedEnvelope); ok {
		if len(rest) < 2 || len(rest) < 2+int(binary.BigEndian.Uint16(rest)) {
			return e, nil, sealed.ErrRefused
		}
		n := 2 + int(binary.BigEndian.Uint16(rest))
		texts, err := box.Open(sealed.Envelope, tenant, id, rest[2:n])
		if err != nil {
			return e, nil, err
		}
		e, _, ok := splitEnvelope(texts)
		if !ok {
			return e, nil, sealed.ErrRefused
		}
		return e, rest[n:], nil
	}
	if rest, ok := bytes.CutPrefix(stored, enveloped); ok {
		if e, inside, ok := splitEnvelope(rest); ok {
			e.clear = true
			return e, inside, nil
		}
	}
	return e, stored, nil // without one, or damaged
}

// open returns what a stored payload has behind its envelope as it was submitted.
func (e envelope) open(box *sealed.Box, tenant, id string, inside []byte) ([]byte, error) {
	block, isBlock := bytes.CutPrefix(inside, sealedBlock)
	switch {
	case e.clear, !isBlock && !sealed.Is(inside):
		return decompress(inside)
	case !isBlock:
		return box.Open(sealed.Payload, tenant, id, inside)
	}
	_, n := binary.Uvarint(block)
	if n <= 0 || !sealed.Is(block[n:]) {
		return nil, sealed.ErrRefused
	}
	block, err := box.Open(sealed.Payload, tenant, id, block[n:])
	if err != nil {
		return nil, err
	}
	return decompress(slices.Concat(compressed, block))
}

// splitEnvelope reads the texts of an envelope, and returns what follows.
func splitEnvelope(rest []byte) (e envelope, payload []byte, ok bool) {
	target := ""
	for _, text := range []*string{&e.contentType, &target} {
		if len(rest) < 2 || len(rest) < 2+int(binary.BigEndian.Uint16(rest)) {
			return envelope{}, nil, false
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
	return e, rest, true
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
func (e envelope) submittedSize(start []byte, stored int) int {
	if block, ok := bytes.CutPrefix(start, sealedBlock); ok && !e.clear {
		if n, length := binary.Uvarint(block); length > 0 && n <= maxPayload {
			return int(n)
		}
	}
	if sealed.Is(start) && !e.clear {
		return stored - sealed.Overhead
	}
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
