// Package client is a small Go client of the Sluice API, for the command line and for programs. A
// Client uses one listener: the intake for jobs, the admin listener for tenants. It makes each call
// once; see Retrying.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/7509e464/sluice/api/client/wire"
)

// maxAnswer bounds the bytes read of an answer. A page of 1,000 jobs is below it, even with the
// longest answers of the upstream.
const maxAnswer = 64 << 20

// Client calls one listener of one server. It is safe for concurrent use.
type Client struct {
	base  string
	token string
	http  *http.Client
	known string // query of changes that may create a tenant
	admin bool   // Jobs, Job, Cancel and Replay are those of operators

	within time.Duration // for which calls are repeated; 0: made once
}

// Operator returns a client of the admin listener whose Jobs, Job, Cancel and Replay are about the
// jobs of any tenant. If the tenant is empty, Jobs lists those of "default", and the others find
// the job by its id.
func (c *Client) Operator() *Client {
	operator := *c
	operator.admin = true
	return &operator
}

// Known returns a client that refuses changes of unknown tenants with an *Error of the kind
// unknown-tenant. So a misspelt name creates no tenant.
func (c *Client) Known() *Client {
	known := *c
	known.known = "?create=false"
	return &known
}

// Creating returns a client whose Pause and Drain create unknown tenants, as Put and Patch do.
func (c *Client) Creating() *Client {
	creating := *c
	creating.known = "?create=true"
	return &creating
}

// New returns a client of the server at base, such as "http://127.0.0.1:8080". token is the admin
// token, an API key or a JWT; it is sent as bearer token unless it is empty. hc is the transport,
// nil for http.DefaultClient; it has the settings of TLS, such as an authority of your own and a
// certificate of the client. The calls have no time limit of their own: bound them by their
// contexts.
func New(base, token string, hc *http.Client) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("client: address: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("client: address %q: must start with http:// or https:// and name a host", base)
	}
	if hc == nil {
		hc = http.DefaultClient
	}
	return &Client{base: strings.TrimRight(base, "/"), token: token, http: hc}, nil
}

// Error is an answer that is not a success, with the server's problem. Its text is the detail.
type Error struct {
	wire.Problem
	RetryAfter time.Duration // by the header, which gives each client a turn of its own; 0 if the server does not say
}

func (e *Error) Error() string {
	switch {
	case e.Detail != "":
		return fmt.Sprintf("%s (%d): %s", e.Title, e.Status, e.Detail)
	case e.Title != "":
		return fmt.Sprintf("%s (%d)", e.Title, e.Status)
	default:
		return fmt.Sprintf("status %d", e.Status)
	}
}

// Kind returns the last part of the problem's type, for example "queue-full"; empty if the answer
// was no problem.
func (e *Error) Kind() string { return e.Type[strings.LastIndexByte(e.Type, ':')+1:] }

// Submission is a job with the options of its submission.
type Submission struct {
	wire.Submission
	// ContentType is that of a payload that is not JSON, or that is to be delivered with another
	// type than application/json. The payload is then sent as it is. Empty: the payload is JSON.
	ContentType    string
	Tenant         string        // empty: that of the token, or the server's "default"
	IdempotencyKey string        // empty: none
	Wait           time.Duration // how long to wait for the job's end, whole seconds up to 30; 0: not at all
}

// Submitted is the result of a submission. The job is done only if it ended within the wait.
type Submitted struct {
	Job      wire.Job
	Replayed bool // the idempotency key was known: the job is the earlier one
}

// Submit submits one job. A refusal is an *Error.
func (c *Client) Submit(ctx context.Context, s Submission) (Submitted, error) {
	h := tenantHeader(s.Tenant)
	prefer(h, s.Wait)
	if given := c.key(s.IdempotencyKey); given != "" {
		key, err := keyHeader(given)
		if err != nil {
			return Submitted{}, err
		}
		h["Idempotency-Key"] = []string{key}
	}
	var out Submitted
	path, body, err := "/v1/jobs", any(nil), error(nil)
	if s.ContentType != "" {
		h["Content-Type"] = []string{s.ContentType}
		for name, value := range s.Headers {
			h.Add("Sluice-Set-"+name, value)
		}
		path, body = path+"?"+rawQuery(s.Submission).Encode(), rawBody(s.Payload)
	} else if body, err = encodeJob(s.Submission, ""); err != nil {
		return Submitted{}, err
	}
	answer, err := c.call(ctx, http.MethodPost, path, h, body, &out.Job)
	if err != nil {
		return Submitted{}, err
	}
	out.Replayed = answer.Get("Idempotent-Replayed") == "true"
	return out, nil
}

// SubmitBatch submits up to 1,000 jobs of one tenant in one step. The results are in the order of
// the jobs; a refused job has a problem, and is no error.
func (c *Client) SubmitBatch(ctx context.Context, tenant string, b wire.Batch) ([]wire.JobResult, error) {
	jobs := make([]json.RawMessage, len(b.Jobs))
	for i, job := range b.Jobs {
		body, err := encodeJob(job.Submission, c.key(job.IdempotencyKey))
		if err != nil {
			return nil, fmt.Errorf("%w (job %d of the batch)", err, i)
		}
		jobs[i] = json.RawMessage(body)
	}
	var results []wire.JobResult
	err := c.repeated(ctx, c.within > 0, func() (err error) {
		results, err = c.SubmitRaw(ctx, tenant, jobs, b.Atomic)
		return err
	})
	return results, err
}

// BatchFrame is the number of bytes of a body of SubmitRaw without the jobs and a comma for each.
const BatchFrame = len(batchHead) + len(batchTail) + len(batchAtomic)

const batchHead, batchTail, batchAtomic = `{"jobs":[`, `]`, `,"atomic":true}`

// SubmitRaw is like SubmitBatch for jobs that are JSON already. They are sent byte for byte.
func (c *Client) SubmitRaw(
	ctx context.Context, tenant string, jobs []json.RawMessage, atomic bool,
) ([]wire.JobResult, error) {
	var body bytes.Buffer
	body.WriteString(batchHead)
	for i, job := range jobs {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(job)
	}
	body.WriteString(batchTail)
	if atomic {
		body.WriteString(batchAtomic)
	} else {
		body.WriteByte('}')
	}
	var out wire.BatchResult
	_, err := c.call(ctx, http.MethodPost, "/v1/jobs/batch", tenantHeader(tenant), rawBody(body.Bytes()),
		&out)
	if err != nil {
		return nil, err
	}
	if len(out.Items) != len(jobs) {
		return nil, fmt.Errorf("client: %d results for %d jobs", len(out.Items), len(jobs))
	}
	return out.Items, nil
}

// rawBody is a body as it is sent, in JSON unless a header says otherwise.
type rawBody []byte

// rawQuery has what is submitted beside a payload that is the body.
func rawQuery(s wire.Submission) url.Values {
	query := url.Values{"type": {s.Type}}
	for name, text := range map[string]string{"route": s.Route, "callback_url": s.CallbackURL, "path": s.Path} {
		if text != "" {
			query.Set(name, text)
		}
	}
	for name, n := range map[string]int64{"delay_ms": s.DelayMS, "max_wait_ms": s.MaxWaitMS, "cost": s.Cost} {
		if n != 0 {
			query.Set(name, strconv.FormatInt(n, 10))
		}
	}
	return query
}

// encodeJob is the job with its payload byte for byte, which package json would compact and escape.
func encodeJob(s wire.Submission, key string) (rawBody, error) {
	if !json.Valid(s.Payload) {
		return nil, errors.New("client: the payload must be one JSON value")
	}
	payload := s.Payload
	s.Payload = nil
	rest, err := json.Marshal(wire.BatchJob{Submission: s, IdempotencyKey: key})
	if err != nil {
		return nil, fmt.Errorf("client: body: %w", err)
	}
	rest = bytes.Replace(rest, []byte(`,"payload":null`), nil, 1) // no text before it can hold a bare quote
	return append(append(rest[:len(rest)-1], `,"payload":`...), append(bytes.Clone(payload), '}')...), nil
}

// List selects one page of a tenant's jobs.
type List struct {
	Tenant string // empty: that of the token, or the server's "default"
	State  string // one of the states of a job, or all
	Route  string // empty: every route
	Type   string // empty: every type
	Key    string // idempotency key; empty: with any or none
	Error  string // operators: text that the last error contains; empty: any
	Limit  int    // up to 1,000; 0: the server's
	Cursor string // NextCursor of the page before; empty starts

	CreatedAfter, CreatedBefore time.Time // zero: at any time
}

// Jobs reads one page of jobs, newest first; pass its NextCursor for the following one.
func (c *Client) Jobs(ctx context.Context, l List) (page wire.JobList, err error) {
	query := url.Values{"state": {l.State}}
	for name, text := range map[string]string{"route": l.Route, "type": l.Type, "idempotency_key": l.Key, "error": l.Error} {
		if text != "" {
			query.Set(name, text)
		}
	}
	for name, t := range map[string]time.Time{
		"created_after": l.CreatedAfter, "created_before": l.CreatedBefore,
	} {
		if !t.IsZero() {
			query.Set(name, t.Format(time.RFC3339Nano))
		}
	}
	path, h := "/v1/jobs", tenantHeader(l.Tenant)
	if c.admin {
		path, h = "/v1/tenants/"+segment(cmp.Or(l.Tenant, "default"))+path[len("/v1"):], nil
	}
	_, err = c.call(ctx, http.MethodGet, pagePath(path, query, l.Cursor, l.Limit), h, nil, &page)
	return page, err
}

// jobPath returns the path of a job, and the headers that name its tenant.
func (c *Client) jobPath(ctx context.Context, tenant, id string) (string, http.Header, error) {
	if !c.admin {
		return "/v1/jobs/" + segment(id), tenantHeader(tenant), nil
	}
	if tenant == "" {
		job, err := c.Find(ctx, id)
		if err != nil {
			return "", nil, err
		}
		tenant = job.Tenant
	}
	return "/v1/tenants/" + segment(tenant) + "/jobs/" + segment(id), http.Header{}, nil
}

// pagePath is the path of a page.
func pagePath(path string, query url.Values, cursor string, limit int) string {
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}

// Job reads a job. With a wait it returns when the job is done or the wait is over: whole seconds,
// at most 30.
func (c *Client) Job(ctx context.Context, tenant, id string, wait time.Duration) (job wire.Job, err error) {
	path, h, err := c.jobPath(ctx, tenant, id)
	if err != nil {
		return job, err
	}
	prefer(h, wait)
	_, err = c.call(ctx, http.MethodGet, path, h, nil, &job)
	return job, err
}

// Find reads a job of any tenant by its id alone, from the admin listener.
func (c *Client) Find(ctx context.Context, id string) (job wire.JobDetail, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/jobs/"+segment(id), nil, nil, &job)
	return job, err
}

// FindWithBody is Find with the start of the body of a forwarded request, which may have secrets.
func (c *Client) FindWithBody(ctx context.Context, id string) (job wire.JobDetail, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/jobs/"+segment(id)+"?request_body=true", nil, nil, &job)
	return job, err
}

// Cancel cancels a waiting job. If the job is leased or done, the error is an *Error of the kind
// job-state-conflict.
func (c *Client) Cancel(ctx context.Context, tenant, id string) (job wire.Job, err error) {
	path, h, err := c.jobPath(ctx, tenant, id)
	if err == nil {
		_, err = c.call(ctx, http.MethodDelete, path, h, nil, &job)
	}
	return job, err
}

// Replay queues a dead job again. If the job is not dead, the error is an *Error of the kind
// job-state-conflict.
func (c *Client) Replay(ctx context.Context, tenant, id string) (job wire.Job, err error) {
	path, h, err := c.jobPath(ctx, tenant, id)
	if err == nil {
		_, err = c.call(ctx, http.MethodPost, path+"/replay", h, nil, &job)
	}
	return job, err
}

// Tenant reads a tenant's policy and figures.
func (c *Client) Tenant(ctx context.Context, name string) (t wire.Tenant, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/tenants/"+segment(name), nil, nil, &t)
	return t, err
}

// Tenants reads one page of tenants; pass its NextCursor for the following one. A limit of 0 is the
// server's.
func (c *Client) Tenants(ctx context.Context, cursor string, limit int) (page wire.TenantList, err error) {
	_, err = c.call(ctx, http.MethodGet, pagePath("/v1/tenants", url.Values{}, cursor, limit), nil, nil, &page)
	return page, err
}

// Patch changes some of a tenant's settings. The patch is a JSON merge patch: wire.Settings for
// values, a map with nil values to reset settings.
func (c *Client) Patch(ctx context.Context, name string, patch any) (t wire.Tenant, err error) {
	_, err = c.call(ctx, http.MethodPatch, "/v1/tenants/"+segment(name)+c.known, nil, patch, &t)
	return t, err
}

// Put replaces all overrides of a tenant. Settings that s leaves out come from the configuration.
func (c *Client) Put(ctx context.Context, name string, s wire.Settings) (t wire.Tenant, err error) {
	_, err = c.call(ctx, http.MethodPut, "/v1/tenants/"+segment(name)+c.known, nil, s, &t)
	return t, err
}

// Reset deletes all overrides of a tenant; its settings then come from the configuration.
func (c *Client) Reset(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/tenants/"+segment(name), nil, nil, nil)
	return err
}

// Pause stops the departures of the tenant; its jobs are still admitted. The reason may be empty.
// An unknown tenant is an *Error of the kind unknown-tenant: see Creating.
func (c *Client) Pause(ctx context.Context, name, reason string) (wire.Tenant, error) {
	return c.PauseRoute(ctx, name, "", reason)
}

// PauseRoute is Pause for one route of the tenant; all if it is empty.
func (c *Client) PauseRoute(ctx context.Context, name, route, reason string) (t wire.Tenant, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/pause"+c.known, nil,
		wire.Switch{Reason: reason, Route: route}, &t)
	return t, err
}

// Drain refuses new jobs of the tenant; waiting ones still leave. The reason may be empty.
// An unknown tenant is an *Error of the kind unknown-tenant: see Creating.
func (c *Client) Drain(ctx context.Context, name, reason string) (t wire.Tenant, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/drain"+c.known, nil,
		wire.Reason{Reason: reason}, &t)
	return t, err
}

// Resume ends a pause and a drain.
func (c *Client) Resume(ctx context.Context, name, reason string) (wire.Tenant, error) {
	return c.ResumeRoute(ctx, name, "", reason)
}

// ResumeRoute ends the pause of one route of the tenant; if it is empty, it is Resume.
func (c *Client) ResumeRoute(ctx context.Context, name, route, reason string) (t wire.Tenant, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/resume", nil,
		wire.Switch{Reason: reason, Route: route}, &t)
	return t, err
}

// Unhold ends the holds of the tenant's flows.
func (c *Client) Unhold(ctx context.Context, name, reason string) (t wire.Tenant, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/unhold", nil,
		wire.Reason{Reason: reason}, &t)
	return t, err
}

// Routes lists the routes with their circuit breakers, failing ones first.
func (c *Client) Routes(ctx context.Context) (r wire.RouteList, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/routes", nil, nil, &r)
	return r, err
}

// Purge cancels the tenant's waiting jobs of the filter and deletes its dead ones: about 10,000 in
// one call. While the answer has More, repeat the call with the CreatedBefore of the answer in the
// filter.
func (c *Client) Purge(ctx context.Context, name string, f wire.Filter) (s wire.Swept, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/purge", nil, f, &s)
	return s, err
}

// EraseTenant makes one step of the erasure of a tenant. While the answer has More, repeat the call
// with its Cursor.
func (c *Client) EraseTenant(ctx context.Context, name, cursor string) (e wire.Erased, err error) {
	path := "/v1/tenants/" + segment(name) + "/erase"
	if cursor != "" {
		path += "?cursor=" + url.QueryEscape(cursor)
	}
	_, err = c.call(ctx, http.MethodPost, path, nil, nil, &e)
	return e, err
}

// PurgeTenants makes one step of a purge of many tenants. While the answer has More, repeat the
// call with its Cursor and CreatedBefore.
func (c *Client) PurgeTenants(ctx context.Context, of wire.TenantsPurge) (p wire.TenantsPurged, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/purge", nil, of, &p)
	return p, err
}

// ReplayAll queues the tenant's dead jobs of the filter again, until the queue is full; see Purge
// for More.
func (c *Client) ReplayAll(ctx context.Context, name string, f wire.Filter) (s wire.Swept, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/replay", nil, f, &s)
	return s, err
}

// History reads the last changes of a tenant's settings, the newest first.
func (c *Client) History(ctx context.Context, name string) (h wire.History, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/tenants/"+segment(name)+"/history", nil, nil, &h)
	return h, err
}

// Version reads the version of the program from the admin listener.
func (c *Client) Version(ctx context.Context) (v wire.Version, err error) {
	_, err = c.call(ctx, http.MethodGet, "/version", nil, nil, &v)
	return v, err
}

// Ready returns nil if the server is ready for work.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodGet, "/readyz", nil, nil, nil)
	return err
}

// call sends a request, again if it may, and decodes a success into out, unless that is nil.
func (c *Client) call(
	ctx context.Context, method, path string, h http.Header, in, out any,
) (answer http.Header, err error) {
	body, raw := in.(rawBody)
	if in != nil && !raw {
		if body, err = json.Marshal(in); err != nil {
			return nil, fmt.Errorf("client: body: %w", err)
		}
	}
	err = c.repeated(ctx, c.within > 0 && mayRepeat(method, h), func() (err error) {
		answer, err = c.once(ctx, method, path, h, body, out)
		return err
	})
	return answer, err
}

// once sends one request, without a body if that is nil.
func (c *Client) once(
	ctx context.Context, method, path string, h http.Header, content rawBody, out any,
) (http.Header, error) {
	var body io.Reader
	if content != nil {
		body = bytes.NewReader(content)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("client: request: %w", err)
	}
	for name, values := range h {
		req.Header[name] = values
	}
	if body != nil && req.Header["Content-Type"] == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("client: %w", errLost{err})
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("client: answer: %w", errLost{err})
	}
	if resp.StatusCode/100 != 2 {
		return nil, problemOf(resp, data)
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			return nil, fmt.Errorf("client: %w: %s %s: %w", ErrNotSluice, method, path, err)
		}
		if foreign(out) {
			return nil, fmt.Errorf("client: %w: %s %s", ErrNotSluice, method, path)
		}
	}
	return resp.Header, nil
}

// problemOf reads the problem of an answer. Of any other answer, such as a proxy's page, it keeps
// only the status.
func problemOf(resp *http.Response, data []byte) error {
	if resp.StatusCode == http.StatusBadRequest && bytes.Contains(data, []byte("HTTP request to an HTTPS server")) {
		return fmt.Errorf("client: %w", ErrHTTPS) // net/http answers so, without a handler
	}
	e := &Error{}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") {
		if err := json.Unmarshal(data, &e.Problem); err != nil {
			e.Problem = wire.Problem{}
		}
	}
	if e.Title == "" {
		e.Title = http.StatusText(resp.StatusCode)
	}
	e.Status = resp.StatusCode
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

func tenantHeader(tenant string) http.Header {
	h := http.Header{}
	if tenant != "" {
		h["Sluice-Tenant"] = []string{tenant}
	}
	return h
}

// prefer asks for a wait, rounded up to whole seconds.
func prefer(h http.Header, wait time.Duration) {
	if wait > 0 {
		h.Set("Prefer", "wait="+strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
	}
}

// keyHeader sends the key as raw bytes, or quoted if it would be read as a structured string.
func keyHeader(key string) (string, error) {
	if !strings.HasPrefix(key, `"`) {
		return key, nil
	}
	quoted, err := httpsfv.Marshal(httpsfv.NewItem(key))
	if err != nil {
		return "", errors.New("client: an idempotency key that starts with a quote must be printable ASCII")
	}
	return quoted, nil
}

// segment escapes one segment of a path, also "." and "..", which servers would resolve.
func segment(s string) string {
	if s == "." || s == ".." {
		return strings.ReplaceAll(s, ".", "%2E")
	}
	return url.PathEscape(s)
}
