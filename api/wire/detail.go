package wire

import "encoding/json"

// MaxPayload is the bytes of the largest payload that a JobDetail has.
const MaxPayload = 64 << 10

// JobDetail is one job as its operator sees it.
type JobDetail struct {
	Job
	Payload          json.RawMessage `json:"payload,omitempty" doc:"As submitted. Absent where it has more than 64 KiB, and where the job has ended and kept none: only dead jobs keep theirs."`
	PayloadEncoding  string          `json:"payload_encoding,omitempty" enum:"base64" doc:"The payload, which a Go program submitted, is not JSON: it is base64 in a string."`
	PayloadBytes     int             `json:"payload_bytes,omitempty" doc:"What the payload has; absent where there is none any more."`
	PayloadTruncated bool            `json:"payload_truncated,omitempty" doc:"The payload has more than 64 KiB and is left out."`
}
