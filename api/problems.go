package api

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
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/keystore"
	"github.com/7509e464/sluice/shaper"
)

// problemURN precedes the name of a kind of problem in its type, for example
// urn:sluice:problem:queue-full.
const problemURN = "urn:sluice:problem:"

// kind is one kind of problem: a name that never changes, its status and its title.
type kind struct {
	name   string
	status int
	title  string
}

// Every kind of problem. The OpenAPI document lists by status those that an operation can answer
// with.
var (
	malformedJSON      = kind{"malformed-json", http.StatusBadRequest, "The body is not one JSON value"}
	unreadableBody     = kind{"unreadable-body", http.StatusBadRequest, "The body could not be read"}
	unauthorized       = kind{"unauthorized", http.StatusUnauthorized, "Credentials are missing or wrong"}
	tenantMismatch     = kind{"tenant-mismatch", http.StatusForbidden, "The credential is of another tenant"}
	forbidden          = kind{"forbidden", http.StatusForbidden, "The request is not allowed from there"}
	notFound           = kind{"not-found", http.StatusNotFound, "There is nothing at this path"}
	unknownJob         = kind{"unknown-job", http.StatusNotFound, "There is no such job"}
	unknownTenant      = kind{"unknown-tenant", http.StatusNotFound, "There is no such tenant"}
	unknownKey         = kind{"unknown-key", http.StatusNotFound, "The tenant has no such API key"}
	unknownGuard       = kind{"unknown-guard", http.StatusNotFound, "There is no such guard, or it knows no such key"}
	unknownRoute       = kind{"unknown-route", http.StatusNotFound, "There is no such route"}
	methodNotAllowed   = kind{"method-not-allowed", http.StatusMethodNotAllowed, "The method is not allowed here"}
	stateConflict      = kind{"job-state-conflict", http.StatusConflict, "The job's state does not allow it"}
	tooManyKeys        = kind{"too-many-keys", http.StatusConflict, "The tenant has as many API keys as it may have"}
	revisionMismatch   = kind{"revision-mismatch", http.StatusPreconditionFailed, "The tenant was changed meanwhile"}
	tooLarge           = kind{"too-large", http.StatusRequestEntityTooLarge, "The body is too large"}
	unsupportedMedia   = kind{"unsupported-media-type", http.StatusUnsupportedMediaType, "The body is in another format"}
	invalidRequest     = kind{"invalid-request", http.StatusUnprocessableEntity, "A field is unknown or invalid"}
	deadlineFarAway    = kind{"deadline-unreachable", http.StatusUnprocessableEntity, "The job could not start within max_wait_ms"}
	keyReused          = kind{"idempotency-key-reused", http.StatusUnprocessableEntity, "The idempotency key belongs to another job"}
	rateLimited        = kind{"rate-limited", http.StatusTooManyRequests, "Too many requests, reads of jobs or wrong credentials"}
	queueFull          = kind{"queue-full", http.StatusTooManyRequests, "The tenant's queue is full"}
	neverFits          = kind{"never-fits", http.StatusTooManyRequests, "So much at once can never fit into the queue"}
	queueBytesFull     = kind{"queue-bytes-full", http.StatusTooManyRequests, "The tenant's queue holds as many bytes as it may"}
	storeFull          = kind{"store-full", http.StatusServiceUnavailable, "The store is full"}
	tenantDraining     = kind{"draining", http.StatusServiceUnavailable, "The tenant takes no jobs"}
	internalFault      = kind{"internal", http.StatusInternalServerError, "Something went wrong in the server"}
	storedDamaged      = kind{"stored-data-damaged", http.StatusInternalServerError, "What is stored for this request cannot be worked with"}
	storageUnavailable = kind{"unavailable", http.StatusServiceUnavailable, "The store cannot be reached or is out of memory"}
	issuerUnavailable  = kind{"issuer-unavailable", http.StatusServiceUnavailable, "The keys that verify tokens cannot be fetched yet"}
	tooManyStreams     = kind{"too-many-streams", http.StatusServiceUnavailable, "The process serves no more event streams"}
	overloaded         = kind{"overloaded", http.StatusServiceUnavailable, "The process has no room for more connections or large bodies"}
	shuttingDown       = kind{"shutting-down", http.StatusServiceUnavailable, "The server is shutting down"}
	starting           = kind{"starting", http.StatusServiceUnavailable, "Starting"} // said by the program, before it has a Server
)

// kinds are all of them, in the order in which the OpenAPI document lists those of one status.
var kinds = []kind{
	malformedJSON, unreadableBody, unauthorized, tenantMismatch, forbidden, notFound, unknownJob, unknownTenant, unknownKey, unknownGuard, unknownRoute, methodNotAllowed, stateConflict,
	tooManyKeys, revisionMismatch, tooLarge, unsupportedMedia, invalidRequest, deadlineFarAway, keyReused, rateLimited, queueFull, queueBytesFull, neverFits, storeFull, tenantDraining, internalFault,
	storedDamaged, storageUnavailable, issuerUnavailable, tooManyStreams, overloaded, shuttingDown, starting,
}

// Kinds that several operations answer with; see also operation.kinds.
var (
	// operatorKinds are of the control plane.
	operatorKinds = []kind{unauthorized, forbidden, rateLimited}
	// admissionKinds are of what brings new jobs.
	admissionKinds = []kind{
		unknownRoute, deadlineFarAway, keyReused, queueFull, queueBytesFull, neverFits, storeFull, tenantDraining, storageUnavailable, shuttingDown,
	}
	// replayKinds are of what brings a dead job back. It has its room in the store, and no
	// deadline.
	replayKinds = []kind{unknownJob, stateConflict, queueFull, queueBytesFull, tenantDraining, storageUnavailable}
	// routerKinds are of requests that reach no operation.
	routerKinds = []kind{notFound, methodNotAllowed}
)

// problem is an error that knows its answer. Its cause, if any, is for the log and never for the
// client.
type problem struct {
	wire.Problem
	header http.Header
	cause  error
}

func (p *problem) Error() string {
	if p.cause != nil {
		return fmt.Sprintf("%s: %v", p.Title, p.cause)
	}
	return p.Title + ": " + p.Detail
}

func (p *problem) Unwrap() error { return p.cause }

// with is a problem of the kind with this detail.
func (k kind) with(detail string) *problem {
	return &problem{Problem: wire.Problem{Type: problemURN + k.name, Title: k.title, Status: k.status, Detail: detail}}
}

// set adds a header to the problem's answer.
func (p *problem) set(name, value string) *problem {
	if p.header == nil {
		p.header = http.Header{}
	}
	p.header.Set(name, value)
	return p
}

// retry says when to come back, in whole seconds.
func (p *problem) retry(seconds int64) *problem {
	return p.set("Retry-After", strconv.FormatInt(seconds, 10))
}

// invalidFields is the 422 for these broken rules; its detail is the first of them.
func invalidFields(errs []wire.FieldError) *problem {
	first := errs[0]
	p := invalidRequest.with(fmt.Sprintf("%s (%s) %s", first.Field, first.Kind, first.Rule))
	p.Errors = errs
	return p
}

// invalid is the 422 for one field outside the body, or for one rule.
func invalid(field, kind, rule string) *problem {
	return invalidFields([]wire.FieldError{{Field: field, Kind: kind, Rule: rule}})
}

// unknownRouteAt is the 404 for fields that name no configured route.
func unknownRouteAt(fields ...string) *problem {
	p := unknownRoute.with(fields[0] + " names no configured route")
	for _, f := range fields[:min(len(fields), maxFieldErrors)] {
		p.Errors = append(p.Errors, wire.FieldError{Field: f, Kind: "string", Rule: "must be a configured route"})
	}
	return p
}

func tooLargeBody(what string, limit int64) *problem {
	return tooLarge.with(fmt.Sprintf("%s must be at most %d bytes", what, limit))
}

// conflict is the 409 for a job whose state does not allow what was asked.
func conflict(job queue.Job, wanted string) *problem {
	p := stateConflict.with(fmt.Sprintf("the job is %v; %s", job.State, wanted))
	p.State = job.State.String()
	return p
}

// problemOf is the one place that turns errors into answers.
func problemOf(err error) *problem {
	var known *problem
	var settings shaper.Problems
	var size *http.MaxBytesError
	var refusal *auth.Refusal
	var guesses *auth.TooManyGuesses
	answer := func(k kind, detail string) *problem {
		p := k.with(detail)
		p.cause = err
		return p
	}
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &settings):
		return invalidSettings(settings)
	case errors.As(err, &size):
		return tooLargeBody("the body", size.Limit)
	case errors.As(err, &refusal):
		return unidentified(refusal)
	case errors.As(err, &guesses):
		return rateLimited.with(guesses.Error() + "; a valid one is still taken").retry(retryAfterSeconds(guesses.Wait))
	case errors.Is(err, auth.ErrNoKeys):
		return answer(issuerUnavailable, "send the same request again").retry(1)
	case errors.Is(err, keystore.ErrUnknownKey):
		return answer(unknownKey, "the tenant has no key with this id")
	case errors.Is(err, keystore.ErrTooManyKeys):
		return answer(tooManyKeys, fmt.Sprintf("a tenant may have %d; revoke one first", keystore.MaxKeys))
	case errors.Is(err, queue.ErrNotFound):
		return answer(unknownJob, "the tenant has no job with this id")
	case errors.Is(err, queue.ErrConflict):
		return answer(stateConflict, "the job's state does not allow it")
	case errors.Is(err, queue.ErrRevision):
		return answer(revisionMismatch, "the revision named in If-Match is not the current one")
	case errors.Is(err, queue.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return answer(storageUnavailable, "nothing is known to have changed; send the same request again").retry(retryAfterSeconds(time.Second))
	case errors.Is(err, queue.ErrScript):
		return answer(storedDamaged, "the same request fails again until an operator has repaired the stored data; the cause is in the server's log")
	default:
		return answer(internalFault, "the cause is in the server's log")
	}
}

// invalidSettings names settings as the API does.
func invalidSettings(ps shaper.Problems) *problem {
	errs := make([]wire.FieldError, 0, len(ps))
	for _, p := range ps {
		field, kind := p.Field, "number"
		switch field[strings.LastIndexByte(field, '.')+1:] { // of a route, too
		case "max_wait":
			field += "_ms"
		case "tier":
			kind = "string"
		case "rate":
			kind = "object"
		case "rates":
			kind = "array"
		}
		errs = append(errs, wire.FieldError{Field: field, Kind: kind, Rule: p.Rule})
	}
	if len(errs) == 0 {
		return invalidRequest.with("a setting is invalid")
	}
	return invalidFields(errs)
}

// write answers with the problem. Everything is set before the first byte, so that nothing can
// follow it.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range p.header {
		h[name] = values
	}
	h.Set("Content-Type", "application/problem+json")
	h["Cache-Control"] = notStored
	within(w, refuseTimeout)
	w.WriteHeader(p.Status)
	// A client that is gone cannot be told so.
	_ = json.NewEncoder(w).Encode(p.Problem)
}
