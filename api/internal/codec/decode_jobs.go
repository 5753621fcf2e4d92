package codec

import (
	"encoding/json"
	"fmt"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/shaper"
)

// DecodeSubmission reads the body of POST /v1/jobs.
func DecodeSubmission(body []byte) (wire.Submission, error) {
	var s wire.Submission
	value, err := oneValue(body)
	if err != nil {
		return s, err
	}
	var rd reader
	rd.submission("", value, &s, nil)
	return s, rd.Err()
}

// DecodeBatch reads the body of POST /v1/jobs/batch. wrong has a problem for each job that cannot
// be submitted, at its index, and is nil where there is none. A payload may be as large as in a
// single submission, not larger.
func DecodeBatch(body []byte, maxPayload int64) (b wire.Batch, wrong []*problem.Problem, err error) {
	value, err := oneValue(body)
	if err != nil {
		return b, nil, err
	}
	var rd reader
	jobs := json.RawMessage(nil)
	refuse := func(i int, p *problem.Problem) {
		for len(wrong) <= i {
			wrong = append(wrong, nil)
		}
		wrong[i] = p
	}
	rd.object("", value, (*wire.Batch)(nil), func(name, path string, value json.RawMessage) bool {
		switch name {
		case "jobs":
			jobs = value
			n := rd.array(path, value, func(i int, path string, value json.RawMessage) {
				if i >= wire.MaxBatch {
					return
				}
				var job wire.BatchJob
				var one reader
				if int64(len(value)) > maxPayload {
					p := problem.TooLargeBody("the job", maxPayload)
					p.Errors = []wire.FieldError{{
						Field: "body", Kind: kindOf(value),
						Rule: fmt.Sprintf("must be at most %d bytes", maxPayload),
					}}
					refuse(i, p)
				} else if one.submission("", value, &job.Submission, &job.IdempotencyKey); len(one.Fields) > 0 {
					refuse(i, problem.InvalidFields(one.Fields))
				}
				b.Jobs = append(b.Jobs, job)
			})
			if n == 0 || n > wire.MaxBatch {
				rd.wrong(path, value, fmt.Sprintf("must have 1 to %d elements", wire.MaxBatch))
			}
		case "atomic":
			b.Atomic = rd.truth(path, value)
		default:
			return false
		}
		return true
	})
	if jobs == nil && len(rd.Fields) == 0 {
		rd.wrong("jobs", nil, "is required")
	}
	if err := rd.Err(); err != nil {
		return b, nil, err
	}
	return b, wrong, nil
}

// Together merges the problems of the jobs of an atomic batch into one, nil if no job has a
// problem. It takes the type of the first problem and the field errors of all problems of that
// type. Each field gets the index of its job.
func Together(wrong []*problem.Problem) error {
	var all *problem.Problem
	for i, p := range wrong {
		if p == nil || all != nil && p.Type != all.Type {
			continue
		}
		if all == nil {
			all = &problem.Problem{Problem: p.Problem}
			all.Errors = nil
		}
		for _, e := range p.Errors {
			if e.Field == "body" {
				e.Field = elementPath("jobs", i)
			} else {
				e.Field = elementPath("jobs", i) + "." + e.Field
			}
			if len(all.Errors) < problem.MaxFieldErrors {
				all.Errors = append(all.Errors, e)
			}
		}
	}
	if all == nil {
		return nil
	}
	all.Detail = all.Errors[0].String()
	return all
}

// submission reads one job; key, if not nil, takes the idempotency key that a job of a batch may
// carry.
func (rd *reader) submission(path string, value json.RawMessage, s *wire.Submission, key *string) {
	hasType := false
	before := len(rd.Fields)
	like := any((*wire.Submission)(nil))
	if key != nil {
		like = (*wire.BatchJob)(nil)
	}
	rd.object(path, value, like, func(name, path string, value json.RawMessage) bool {
		switch name {
		case "type":
			hasType = true
			s.Type = rd.text(path, value, 1, wire.MaxTypeBytes)
		case "payload":
			s.Payload = value
		case "route":
			s.Route = rd.text(path, value, 1, wire.MaxTypeBytes)
		case "delay_ms":
			s.DelayMS = rd.whole(path, value, 0, wire.MaxMillis)
		case "max_wait_ms":
			s.MaxWaitMS = rd.whole(path, value, 0, wire.MaxMillis)
		case "cost":
			s.Cost = rd.whole(path, value, 1, shaper.MaxCost)
		case "path":
			if s.Path = rd.text(path, value, 1, wire.MaxPathBytes); s.Path != "" {
				if rule := httpmsg.CheckPath(s.Path); rule != "" {
					rd.wrong(path, value, rule)
				}
			}
		case "headers":
			s.Headers = rd.headers(path, value)
		case "callback_url":
			s.CallbackURL = rd.text(path, value, 1, wire.MaxCallback)
		case "idempotency_key":
			if key == nil {
				rd.Add(path, kindOf(value), "", "must be sent as the header Idempotency-Key")
				return true
			}
			*key = rd.text(path, value, 1, wire.MaxKeyBytes)
		case "tenant":
			rd.Add(path, kindOf(value), "", "is no field: the credential names the tenant or, without authentication, "+
				"the header Sluice-Tenant")
		default:
			return false
		}
		return true
	})
	if len(rd.Fields) > before && kindOf(value) != "object" {
		return
	}
	if !hasType {
		rd.wrong(Join(path, "type"), nil, "is required")
	}
	if s.Payload == nil {
		rd.wrong(Join(path, "payload"), nil, "is required")
	}
}

// maxHeadersText is far more than the headers of a job take in JSON, also with each character
// escaped.
const maxHeadersText = 64 << 10

// headers reads the headers of a job, and at most one more than it may have.
func (rd *reader) headers(path string, value json.RawMessage) map[string]string {
	headers, before := map[string]string{}, len(rd.Fields)
	if len(value) > maxHeadersText {
		rd.Add(path, kindOf(value), "", httpmsg.JobHeadersRule)
		return headers
	}
	rd.object(path, value, nil, func(name, at string, value json.RawMessage) bool {
		if len(headers) <= httpmsg.MaxJobHeaders {
			headers[name] = rd.text(at, value, 0, httpmsg.MaxJobHeaderBytes)
		}
		return true
	})
	if len(rd.Fields) == before {
		checkHeaders(&rd.Fields, headers, path, func(name string) string { return Join(path, name) })
	}
	return headers
}

// checkHeaders notes the rules that the headers of a job break: together in the field all, and each
// in the field that fieldOf returns for its name.
func checkHeaders(wrong *problem.Fields, headers map[string]string, all string, fieldOf func(name string) string) {
	rule := httpmsg.CheckJobHeaders(headers, func(name, rule string) { wrong.Add(fieldOf(name), "string", "", rule) })
	if rule != "" {
		wrong.Add(all, "object", "", rule)
	}
}
