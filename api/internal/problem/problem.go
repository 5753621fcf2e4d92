// Package problem maps errors to RFC 9457 problems, the answers of api to failed requests, and
// declares every kind of them. It also informs clients about limits: rate limit headers,
// Retry-After, and the slots for which clients of a full queue come again. All packages of api
// that refuse requests import it.
package problem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// URN is the prefix of the type of a problem, for example urn:sluice:problem:queue-full.
const URN = "urn:sluice:problem:"

// Kind is one kind of problem. Its name never changes, because clients compare the type.
type Kind struct {
	Name   string // the end of the type, such as queue-full
	Status int    // of HTTP
	Title  string // the same for every problem of the kind
}

// Every kind of problem. The OpenAPI document lists for each operation the kinds that it can
// answer, by status.
var (
	MalformedJSON  = Kind{"malformed-json", http.StatusBadRequest, "The body is not one JSON value"}
	UnreadableBody = Kind{"unreadable-body", http.StatusBadRequest, "The body could not be read"}
	Unauthorized   = Kind{"unauthorized", http.StatusUnauthorized, "Credentials are missing or wrong"}
	TenantMismatch = Kind{"tenant-mismatch", http.StatusForbidden, "The credential belongs to another tenant"}
	Forbidden      = Kind{"forbidden", http.StatusForbidden, "The request is not allowed"}
	NotFound       = Kind{"not-found", http.StatusNotFound, "There is nothing at this path"}
	UnknownJob     = Kind{"unknown-job", http.StatusNotFound, "There is no such job"}
	UnknownTenant  = Kind{"unknown-tenant", http.StatusNotFound, "There is no such tenant"}
	UnknownKey     = Kind{"unknown-key", http.StatusNotFound, "The tenant has no such API key"}
	UnknownSecret  = Kind{
		"unknown-callback-secret", http.StatusNotFound, "The tenant has no such secret of callbacks",
	}
	UnknownGuard = Kind{
		"unknown-guard", http.StatusNotFound, "There is no such guard, or it has no such key",
	}
	UnknownOperator  = Kind{"unknown-operator", http.StatusNotFound, "There is no such operator"}
	UnknownSession   = Kind{"unknown-session", http.StatusNotFound, "There is no such session"}
	UnknownPool      = Kind{"unknown-pool", http.StatusNotFound, "There is no such pool"}
	JobGone          = Kind{"job-gone", http.StatusGone, "The job or its answer is gone"}
	NoAnswer         = Kind{"upstream-no-answer", http.StatusBadGateway, "The upstream gave no answer"}
	LateAnswer       = Kind{"upstream-timeout", http.StatusGatewayTimeout, "The upstream gave no answer in time"}
	AnswerPending    = Kind{"answer-pending", http.StatusGatewayTimeout, "The answer of the upstream is not there yet"}
	ClientLeft       = Kind{"client-left", 499, "The client has closed the connection"}
	NotForwarded     = Kind{"not-forwarded", http.StatusNotImplemented, "Such a request is not forwarded"}
	HopelessWait     = Kind{"wait-hopeless", http.StatusServiceUnavailable, "The request could not leave in time"}
	ForwardOnly      = Kind{"forward-only", http.StatusUnprocessableEntity, "The route takes forwarded requests only"}
	UnknownRoute     = Kind{"unknown-route", http.StatusNotFound, "There is no such route"}
	MethodNotAllowed = Kind{
		"method-not-allowed", http.StatusMethodNotAllowed, "The method is not allowed here",
	}
	StateConflict = Kind{"job-state-conflict", http.StatusConflict, "The job's state does not allow it"}
	TooManyKeys   = Kind{
		"too-many-keys", http.StatusConflict, "The tenant has the maximum number of API keys",
	}
	TooManySecrets = Kind{
		"too-many-callback-secrets", http.StatusConflict, "The tenant has the maximum number of secrets of callbacks",
	}
	OperatorExists     = Kind{"operator-exists", http.StatusConflict, "An operator has this name"}
	TooManyOperators   = Kind{"too-many-operators", http.StatusConflict, "There is the maximum number of operators"}
	TooManyRevocations = Kind{
		"too-many-revocations", http.StatusConflict, "The maximum number of revocations of tokens is reached",
	}
	RevisionMismatch = Kind{
		"revision-mismatch", http.StatusPreconditionFailed, "The settings have changed",
	}
	TooLarge         = Kind{"too-large", http.StatusRequestEntityTooLarge, "The body is too large"}
	UnsupportedMedia = Kind{
		"unsupported-media-type", http.StatusUnsupportedMediaType, "The body has an unsupported format",
	}
	InvalidRequest  = Kind{"invalid-request", http.StatusUnprocessableEntity, "A field is unknown or invalid"}
	DeadlineFarAway = Kind{
		"deadline-unreachable", http.StatusUnprocessableEntity, "The job could not start within max_wait_ms",
	}
	TooCostly = Kind{
		"too-costly", http.StatusUnprocessableEntity, "The cost exceeds max_cost of the tenant or the pool",
	}
	KeyReused = Kind{
		"idempotency-key-reused", http.StatusUnprocessableEntity,
		"The idempotency key belongs to another job",
	}
	RateLimited = Kind{
		"rate-limited", http.StatusTooManyRequests, "Too many requests, reads of jobs or wrong credentials",
	}
	QueueFull      = Kind{"queue-full", http.StatusTooManyRequests, "The queue is full"}
	NeverFits      = Kind{"never-fits", http.StatusTooManyRequests, "The request can never fit into the queue"}
	QueueBytesFull = Kind{
		"queue-bytes-full", http.StatusTooManyRequests,
		"A limit in bytes is reached",
	}
	StoreFull      = Kind{"store-full", http.StatusServiceUnavailable, "The store is full"}
	TenantDraining = Kind{
		"draining", http.StatusServiceUnavailable, "The tenant is draining and takes no jobs",
	}
	InternalFault = Kind{"internal", http.StatusInternalServerError, "The server failed"}
	StoredDamaged = Kind{
		"stored-data-damaged", http.StatusInternalServerError, "The stored data for this request is damaged",
	}
	StorageUnavailable = Kind{
		"unavailable", http.StatusServiceUnavailable, "The store cannot be reached or is out of memory",
	}
	OutcomeUnknown = Kind{
		"outcome-unknown", http.StatusServiceUnavailable,
		"The change is not on as many replicas of the store as it should be",
	}
	IssuerUnavailable = Kind{
		"issuer-unavailable", http.StatusServiceUnavailable,
		"The keys that verify tokens cannot be fetched yet",
	}
	TooManyStreams = Kind{
		"too-many-streams", http.StatusServiceUnavailable,
		"The process has reached its limit of event streams",
	}
	Overloaded = Kind{
		"overloaded", http.StatusServiceUnavailable,
		"The process has reached its limit of connections or of memory for large bodies",
	}
	ShuttingDown = Kind{"shutting-down", http.StatusServiceUnavailable, "The server is shutting down"}
	// Starting is answered by the program before it has a Server.
	Starting = Kind{"starting", http.StatusServiceUnavailable, "Starting"}
)

// Kinds are all kinds, in the order in which the OpenAPI document lists those of one status.
var Kinds = []Kind{
	MalformedJSON, UnreadableBody, Unauthorized, TenantMismatch, Forbidden, NotFound, UnknownJob,
	UnknownTenant, UnknownKey, UnknownSecret, UnknownOperator, UnknownSession, UnknownGuard, UnknownPool, UnknownRoute, MethodNotAllowed, StateConflict, JobGone,
	ForwardOnly, NotForwarded, NoAnswer, LateAnswer, AnswerPending, HopelessWait, ClientLeft,
	TooManyKeys, TooManySecrets, TooManyRevocations, OperatorExists, TooManyOperators, RevisionMismatch, TooLarge, UnsupportedMedia, InvalidRequest, DeadlineFarAway, TooCostly, KeyReused,
	RateLimited, QueueFull, QueueBytesFull, NeverFits, StoreFull, TenantDraining, InternalFault,
	StoredDamaged, StorageUnavailable, OutcomeUnknown, IssuerUnavailable, TooManyStreams, Overloaded, ShuttingDown, Starting,
}

// unpaid are the kinds of refusals for which the store is not asked.
var unpaid = func() map[string]bool {
	types := map[string]bool{}
	for _, k := range []Kind{
		MalformedJSON, UnreadableBody, Unauthorized, TenantMismatch, Forbidden, NotFound, UnknownRoute, MethodNotAllowed,
		ForwardOnly, NotForwarded, TooLarge, UnsupportedMedia, InvalidRequest, RateLimited, TooManyStreams, Overloaded,
		ShuttingDown, Starting, IssuerUnavailable,
	} {
		types[URN+k.Name] = true
	}
	return types
}()

// Problem is an error with its HTTP answer. Its cause, if any, goes to the log and never to the
// client.
type Problem struct {
	wire.Problem
	Header http.Header // of the answer; nil: none of its own
	Cause  error       // nil: there is none
	Unpaid bool        // the store was not asked, as for the kinds in unpaid
}

func (p *Problem) Error() string {
	if p.Cause != nil {
		return fmt.Sprintf("%s: %v", p.Title, p.Cause)
	}
	return p.Title + ": " + p.Detail
}

func (p *Problem) Unwrap() error { return p.Cause }

// With returns a problem of the kind with this detail.
func (k Kind) With(detail string) *Problem {
	return &Problem{Problem: wire.Problem{Type: URN + k.Name, Title: k.Title, Status: k.Status, Detail: detail}}
}

// SetHeader adds a header to the answer and returns the problem.
func (p *Problem) SetHeader(name, value string) *Problem {
	if p.Header == nil {
		p.Header = http.Header{}
	}
	p.Header.Set(name, value)
	return p
}

// RetryIn sets Retry-After to the wait, with the random part that RetryAfter adds, and
// returns the problem.
func (p *Problem) RetryIn(wait time.Duration) *Problem { return p.Retry(RetryAfter(wait)) }

// Retry sets Retry-After in seconds and returns the problem.
func (p *Problem) Retry(seconds int64) *Problem {
	return p.SetHeader("Retry-After", strconv.FormatInt(seconds, 10))
}

// Fields collects the rules that a request breaks, at most MaxFieldErrors.
type Fields []wire.FieldError

// Add records that the field, whose value has the JSON kind, breaks the rule. It ignores fields
// beyond MaxFieldErrors. The value is empty where it may be a secret; see wire.FieldError.
func (f *Fields) Add(field, kind, value, rule string) {
	if !f.Full() {
		*f = append(*f, fieldError(field, kind, value, rule))
	}
}

// Full reports whether Add ignores all further fields. A reader then stops: nobody pays for the
// rules that a long request breaks.
func (f Fields) Full() bool { return len(f) >= MaxFieldErrors }

func fieldError(field, kind, value, rule string) wire.FieldError {
	if value = strings.ToValidUTF8(value, "\ufffd"); len(value) > maxValue {
		value = strings.ToValidUTF8(value[:maxValue], "") + "…"
	}
	return wire.FieldError{Field: field, Kind: kind, Value: value, Rule: rule}
}

// maxValue is how many bytes of a value errors repeat.
const maxValue = 64

// Err returns all recorded fields as one *Problem, nil if there are none.
func (f Fields) Err() error {
	if len(f) == 0 {
		return nil
	}
	return InvalidFields(f)
}

// InvalidFields returns the 422 for these broken rules, at least one; its detail is the first of
// them.
func InvalidFields(errs []wire.FieldError) *Problem {
	p := InvalidRequest.With(errs[0].String())
	p.Errors = errs
	return p
}

// Invalid returns the 422 for one field, whose value is not repeated.
func Invalid(field, kind, rule string) *Problem { return InvalidValue(field, kind, "", rule) }

// InvalidValue returns the 422 for one field with its value.
func InvalidValue(field, kind, value, rule string) *Problem {
	return InvalidFields([]wire.FieldError{fieldError(field, kind, value, rule)})
}

// UnknownRouteAt returns the 404 for a field that names a route which the rule does not allow. The
// name is empty where it is not repeated.
func UnknownRouteAt(field, route, rule string) *Problem {
	p := UnknownRoute.With("")
	p.Errors = []wire.FieldError{fieldError(field, "string", route, rule)}
	p.Detail = p.Errors[0].String()
	return p
}

// NotConfigured is the rule for a route where clients may not learn the names of others.
const NotConfigured = "must be a configured route"

// TooLargeBody returns the 413 for a body, or a part of it, above the limit in bytes. what names
// it, such as "the body".
func TooLargeBody(what string, limit int64) *Problem {
	return TooLarge.With(fmt.Sprintf("%s must be at most %d bytes", what, limit))
}

// Conflict returns the 409 for a job whose state does not allow the request; wanted names the
// states that do.
func Conflict(job queue.Job, wanted string) *Problem {
	p := StateConflict.With(fmt.Sprintf("the job is %v; %s", job.State, wanted))
	p.State = job.State.String()
	return p
}

// Of returns the answer to an error; an unknown error is an internal one (500). It is the only
// place that maps errors to statuses.
func Of(err error) *Problem {
	var known *Problem
	var settings shaper.Problems
	var size *http.MaxBytesError
	var refusal *auth.Refusal
	var guesses *auth.TooManyGuesses
	var forbidden *auth.Forbidden
	answer := func(k Kind, detail string) *Problem {
		p := k.With(detail)
		p.Cause = err
		return p
	}
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &settings):
		return invalidSettings(settings)
	case errors.As(err, &size):
		return TooLargeBody("the body", size.Limit)
	case errors.As(err, &refusal):
		return Unidentified(refusal)
	case errors.As(err, &forbidden):
		p := Forbidden.With(forbidden.Detail)
		p.Missing = forbidden.Missing
		return p
	case errors.As(err, &guesses):
		return RateLimited.With(guesses.Error() + "; valid credentials are still accepted").RetryIn(guesses.Wait)
	case errors.Is(err, auth.ErrNoKeys):
		return answer(IssuerUnavailable, "send the same request again").Retry(1)
	case errors.Is(err, queue.ErrUnknownKey):
		return answer(UnknownKey, "the tenant has no key with this id; in a key, it is between sluice_ and the next _")
	case errors.Is(err, queue.ErrTooManyKeys):
		return answer(TooManyKeys, fmt.Sprintf("a tenant may have %d keys; revoke one first", queue.MaxKeys))
	case errors.Is(err, queue.ErrUnknownSecret):
		return answer(UnknownSecret, "the tenant has no secret of callbacks with this id")
	case errors.Is(err, queue.ErrTooManySecrets):
		return answer(TooManySecrets, fmt.Sprintf("a tenant may have %d secrets of callbacks; revoke one first",
			queue.MaxCallbackSecrets))
	case errors.Is(err, operators.ErrUnknown):
		return answer(UnknownOperator, "there is no operator with this id")
	case errors.Is(err, operators.ErrExists):
		return answer(OperatorExists, "revoke that one first, or choose another name")
	case errors.Is(err, operators.ErrTooMany):
		return answer(TooManyOperators, fmt.Sprintf("there may be %d operators; revoke one first", operators.MaxAccounts))
	case errors.Is(err, queue.ErrTooManyRevocations):
		return answer(TooManyRevocations, "revoke all tokens of a tenant in place of those of its subjects")
	case errors.Is(err, queue.ErrNotFound):
		return answer(UnknownJob, "the tenant has no job with this id")
	case errors.Is(err, queue.ErrGone):
		return answer(JobGone, "nothing is stored of it: it is past its retention, newer answers of the tenant "+
			"needed its space, or there never was such a job")
	case errors.Is(err, queue.ErrNoPool):
		return answer(UnknownPool, "the configuration file declares pools, and has none of this name")
	case errors.Is(err, queue.ErrConflict):
		return answer(StateConflict, "the job's state does not allow this operation")
	case errors.Is(err, queue.ErrRevision):
		return answer(RevisionMismatch, "the revision named in If-Match is not the current one")
	case errors.Is(err, context.Canceled): // nothing else ends the work for a request early
		return answer(ClientLeft, "nobody waits for this answer")
	case errors.Is(err, queue.ErrOutcomeUnknown):
		return answer(OutcomeUnknown, "a failover of the store may undo the change; "+
			"send the same request again to find out").RetryIn(time.Second)
	case errors.Is(err, queue.ErrRefused):
		return answer(StorageUnavailable, "the store has too few replicas and accepts no changes; "+
			"send the same request again").RetryIn(time.Second)
	case OutOfMemory(err):
		return answer(StorageUnavailable, "it is at its maxmemory and refuses changes; "+
			"send the same request again, a job with the same Idempotency-Key").RetryIn(time.Second)
	case errors.Is(err, queue.ErrState):
		return answer(StorageUnavailable, "it answers that it cannot serve now, and the server's log has the cause; "+
			"send the same request again, a job with the same Idempotency-Key").RetryIn(time.Second)
	case errors.Is(err, queue.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return answer(StorageUnavailable, "it did not answer: a change may have been made, or not; "+
			"send the same request again, a job with the same Idempotency-Key").RetryIn(time.Second)
	case errors.Is(err, queue.ErrScript):
		return answer(StoredDamaged, "retries fail until an operator has repaired the stored data; "+
			"the server's log has the cause")
	default:
		return answer(InternalFault, "the server's log has the cause")
	}
}

// OutOfMemory reports whether Redis is at its maxmemory, and therefore refused a change.
func OutOfMemory(err error) bool {
	return errors.Is(err, queue.ErrUnavailable) && strings.Contains(err.Error(), "OOM ")
}

// invalidSettings is the 422 for settings, with the names that the API gives them.
func invalidSettings(ps shaper.Problems) *Problem {
	errs := make([]wire.FieldError, 0, len(ps))
	for _, p := range ps {
		field, kind := p.Field, "number"
		switch field[strings.LastIndexByte(field, '.')+1:] { // of a route, too
		case "max_wait":
			field += "_ms"
		case "tier":
			kind = "string"
		case "rate", "reserve":
			kind = "object"
		case "atomic":
			kind = "boolean"
		case "rates":
			kind = "array"
		}
		value := p.Value
		if unquoted, err := strconv.Unquote(value); kind == "string" && err == nil {
			value = unquoted
		}
		errs = append(errs, fieldError(field, kind, value, p.Rule))
	}
	if len(errs) == 0 {
		return InvalidRequest.With("a setting is invalid")
	}
	return InvalidFields(errs)
}

// Write answers a request with the problem. It sets every header before the first byte.
func (p *Problem) Write(w http.ResponseWriter, r *http.Request) {
	if unpaid[p.Type] || p.Unpaid { // also where a guard has asked the store: it is in no budget
		listen.Unpaid(w, r, func() { p.write(w) })
	} else {
		p.write(w)
	}
}

func (p *Problem) write(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range p.Header {
		h[name] = values
	}
	h.Set("Content-Type", "application/problem+json")
	h["Cache-Control"] = []string{"no-store"}
	deadline.Within(w, deadline.RefuseTimeout)
	w.WriteHeader(p.Status)
	// The client may be gone.
	_ = json.NewEncoder(w).Encode(p.Problem)
}

// Unidentified returns the 401 of a refused credential.
func Unidentified(refusal *auth.Refusal) *Problem {
	return Unauthorized.With(refusal.Error()).SetHeader("WWW-Authenticate", refusal.Challenge())
}

// MaxFieldErrors bounds how many broken rules one answer lists.
const MaxFieldErrors = 20
