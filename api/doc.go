// Package api is the HTTP face of Sluice: the intake, where clients submit jobs and ask for them,
// and the admin listener, where operators change tenants.
//
// It promises what the contract page says: every error is a problem (RFC 9457) that names the
// field, the kind of value and the rule, and never repeats a payload; every answer is one that
// /openapi.json documents. It keeps no state of its own but caches of figures and, for predictions,
// the last hour's arrivals (package arrivals); admission, rates and jobs are the queue's, reached
// through the small ports in ports.go.
//
// # How a request is answered
//
// Each operation is declared once, as a huma operation with a handler (operations.go). The
// declaration is the OpenAPI document and at the same time what is enforced: the query parameters
// it lists are the only ones taken, its body formats and size limit are the ones read. Bodies are
// read by one strict decoder (decode.go), which knows no reflection, so the submission path stays
// lean. A handler returns an answer or an error, and one table (problems.go) turns errors into
// statuses. Whose request it is, package auth decides before a body is read (identity.go); every
// handler of the data plane goes by the tenant of that principal. An event stream (events.go) is an
// answer that goes on after its headers; all that can be refused is refused before.
package api
