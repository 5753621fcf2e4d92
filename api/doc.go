// Package api serves Sluice over HTTP: the intake, where clients submit and read jobs, and the
// admin listener, where operators change tenants.
//
// Every error is a problem (RFC 9457) that names the field, the kind of value and the rule, and
// never repeats a payload. Every answer is documented by /openapi.json. The package keeps no state
// except caches of figures and the arrivals of the last hour, for predictions. Jobs and rates
// belong to the queue, see Backend.
//
// # How a request is answered
//
// Package contract declares each operation: the OpenAPI document is made of it, and mount enforces
// it. Query parameters that it does not list are refused, and it bounds the body. Package auth
// finds the tenant before a body is read (identity.go). Packages decode and request turn the
// request into values, a handler calls the queue, and towire makes the JSON of the answer. A
// handler returns an answer or an error, and package problem maps errors to statuses. An event
// stream (events.go) is an answer that continues after its headers; everything that can be refused
// is refused before.
package api
