package queue

import (
	"bytes"
	"fmt"

	"github.com/klauspost/compress/s2"
)

// A stored payload that begins with compressed is that and an S2 block of it. JSON never begins so; any other payload that does is
// compressed whatever it gains.
var compressed = []byte("\xffs2\x01")

// compress is the payload as it is stored. What gains less than an eighth stays as it is.
func (q *Queue) compress(payload []byte) []byte {
	escapes := bytes.HasPrefix(payload, compressed)
	if !escapes && (q.compressOver <= 0 || len(payload) < q.compressOver) {
		return payload
	}
	buffer := make([]byte, len(compressed)+s2.MaxEncodedLen(len(payload)))
	block := s2.Encode(buffer[len(compressed):], payload)
	n := len(compressed) + len(block)
	if !escapes && n > len(payload)-len(payload)/8 {
		return payload
	}
	copy(buffer, compressed)
	return buffer[:n]
}

// submittedSize is how many bytes a payload had when it was submitted: it is stored in so many, and these are the first of them.
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
