package wire

import "encoding/json"

// MaxPayload is the size of the largest payload in a JobDetail, in bytes.
const MaxPayload = 64 << 10

// JobDetail is a job as an operator sees it.
type JobDetail struct {
	Job
	Request          *Request        `json:"request,omitempty" doc:"The forwarded request, until it has ended. Absent if it has more than 64 KiB, and for a job with a payload."`
	Payload          json.RawMessage `json:"payload,omitempty" doc:"The payload as submitted. Absent if it has more than 64 KiB, if the job has ended without becoming a dead letter, and for a forwarded request."`
	PayloadEncoding  string          `json:"payload_encoding,omitempty" enum:"base64" doc:"Set if a Go program submitted a payload that is not JSON: payload is a base64 string."`
	PayloadBytes     int             `json:"payload_bytes,omitempty" doc:"Size of the payload, or of the forwarded request with its headers; absent if it is no longer stored."`
	PayloadTruncated bool            `json:"payload_truncated,omitempty" doc:"The payload has more than 64 KiB and is left out."`
}

// Request is a forwarded request as its upstream gets it, with at most 4 KiB of its body.
type Request struct {
	Method        string            `json:"method" example:"PUT"`
	Target        string            `json:"target" example:"/orders/7?verbose=1" doc:"Path and query below the URL of the route, encoded as the client sent them. Parameters that are named like a credential, such as api_key, have the value hidden."`
	Headers       map[string]string `json:"headers" doc:"The values of a repeated header are joined by commas. Headers that are named like a credential, such as Authorization, have the value hidden."`
	Body          string            `json:"body" doc:"The first 4 KiB, as text, or base64 if body_encoding is base64. Empty unless request_body is true."`
	BodyEncoding  string            `json:"body_encoding,omitempty" enum:"base64"`
	BodyBytes     int               `json:"body_bytes" doc:"Size of the whole body."`
	BodyTruncated bool              `json:"body_truncated"`
}
