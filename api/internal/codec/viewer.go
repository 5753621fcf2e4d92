package codec

import (
	"github.com/7509e464/sluice/api/client/wire"
)

// hiddenText takes the place of what viewers do not see.
const hiddenText = "(hidden)"

// ForViewer returns the body of an answer, or the data of an event, as a viewer sees it: without
// what clients wrote and what upstreams answered, which may repeat it. What it changes is copied.
// The type of a job, its tenant and its route stay, but not the path of a forwarded request, which
// is a part of its type.
func ForViewer(body any) any {
	switch v := body.(type) {
	case *wire.Job:
		out := hideJob(*v)
		return &out
	case wire.Job:
		return hideJob(v)
	case wire.JobList:
		items := make([]wire.Job, len(v.Items))
		for i, j := range v.Items {
			items[i] = hideJob(j)
		}
		v.Items = items
		return v
	case wire.JobDetail:
		v.Job = hideJob(v.Job)
		v.Payload, v.PayloadEncoding = nil, ""
		if v.Request != nil {
			v.Request = &wire.Request{
				Method: v.Request.Method, Target: hiddenText, Headers: hideValues(v.Request.Headers),
				BodyBytes: v.Request.BodyBytes, BodyTruncated: v.Request.BodyBytes > 0,
			}
		}
		return v
	case wire.RouteList:
		v.Items = hideFailures(v.Items)
		return v
	case wire.Overview:
		v.Routes = hideFailures(v.Routes)
		return v
	}
	return body
}

func hideJob(j wire.Job) wire.Job {
	j.Hidden = true
	if method, _, ok := forwardedType(j.Type); ok {
		j.Type = method + " " + hiddenText
	}
	j.Headers = hideValues(j.Headers)
	if e := j.LastError; e != nil {
		j.LastError = &wire.JobError{Message: hiddenText, Status: e.Status, At: e.At}
	}
	if j.AttemptLog != nil {
		log := make([]wire.Attempt, len(j.AttemptLog))
		for i, a := range j.AttemptLog {
			if log[i] = a; a.Message != "" {
				log[i].Message = hiddenText
			}
		}
		j.AttemptLog = log
	}
	if r := j.Response; r != nil {
		j.Response = &wire.Response{Status: r.Status, Headers: hideValues(r.Headers), BodyTruncated: r.Body != "" || r.BodyTruncated}
	}
	return j
}

func hideValues(headers map[string]string) map[string]string {
	if headers == nil {
		return nil
	}
	out := make(map[string]string, len(headers))
	for name := range headers {
		out[name] = hiddenText
	}
	return out
}

func hideFailures(lines []wire.RouteLine) []wire.RouteLine {
	out := make([]wire.RouteLine, len(lines))
	for i, line := range lines {
		if out[i] = line; line.Last != nil {
			f := wire.RouteFailure{At: line.Last.At, Tenant: line.Last.Tenant, Job: line.Last.Job, Message: hiddenText, Status: line.Last.Status}
			out[i].Last = &f
		}
	}
	return out
}
