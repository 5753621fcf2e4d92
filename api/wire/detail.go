package wire

import "encoding/json"

// MaxPayload is the size of the largest payload in a JobDetail, in bytes.
const MaxPayload = 64 << 10

// JobDetail is a job as an operator sees it.
type JobDetail struct {
	Job
	Payload          json.RawMessage `json:"payload,omitempty" doc:"The payload as submitted. Absent if it has more than 64 KiB, or if the job has ended without becoming a dead letter."`
	PayloadEncoding  string          `json:"payload_encoding,omitempty" enum:"base64" doc:"Set if a Go program submitted a payload that is not JSON: payload is a base64 string."`
	PayloadBytes     int             `json:"payload_bytes,omitempty" doc:"Size of the payload; absent if it is no longer stored."`
	PayloadTruncated bool            `json:"payload_truncated,omitempty" doc:"The payload has more than 64 KiB and is left out."`
}
