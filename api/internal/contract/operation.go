package contract

import (
	"cmp"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
)

// Operation is one method of one path: its declaration, which the OpenAPI document shows and
// package api enforces.
type Operation struct {
	ID, Method, Path string
	Endpoint         string // names it for guards; empty: the ID
	tag              string
	summary          string
	description      string
	Params           []*huma.Param         // every accepted query parameter
	Body             *Body                 // nil: the operation has no body
	anyBody          int64                 // most bytes of a body of any format; 0: Body
	answers          map[int]Answer        // on success, by status
	Refusals         []problem.Kind        // further problems that it may answer with; see Kinds
	Identifies       bool                  // the handler needs the principal
	Security         []map[string][]string // as in OpenAPI; nil: those of the listener
	// Scope is what the credential of a client must allow. Every operation that identifies has one.
	Scope queue.Scope
	// role is the least one of an operator who may call it; see LeastRole.
	role operators.Role
	// Action names it in the audit; empty: it is not recorded.
	Action string
	// advice ends the detail of every invalid-request: what a right request looks like.
	advice string
}

// LeastRole is the least role of an operator who may call the operation. Unless it says another
// one, viewers read and operators change.
func (op Operation) LeastRole() operators.Role {
	switch {
	case op.role != "":
		return op.role
	case op.Method == http.MethodGet:
		return operators.Viewer
	default:
		return operators.Operator
	}
}

// Advised returns the error with the advice of the operation.
func (op Operation) Advised(err error) error {
	p, is := errors.AsType[*problem.Problem](err)
	if !is || op.advice == "" || p.Type != problem.URN+problem.InvalidRequest.Name {
		return err
	}
	advised := *p
	if !strings.HasSuffix(advised.Detail, "?") {
		advised.Detail += ";"
	}
	advised.Detail += " " + op.advice
	return &advised
}

// Body is the request body that an operation reads.
type Body struct {
	budget.Spec
	of       any          // a value of its type
	narrower *huma.Schema // further rules, where other operations accept more of the type
	// Needed documents a body as required that is read as an optional one: without it the answer is
	// a 422 that says what it has, in place of a 415.
	needed bool
	// Raw accepts a body of any other format, too, if the query has the parameter type.
	Raw bool
}

// anyStatus documents an answer with a status that is not known before.
const anyStatus = 0

// Answer documents one successful status; of is a value of the body's type, nil for none, an
// eventStream, or anyBytes.
type Answer struct {
	text    string
	of      any
	headers []string // names, described in headerDocs
}

// Document describes the operation as OpenAPI, and adds the schemas of its bodies to schemas.
func (op Operation) Document(schemas huma.Registry) *huma.Operation {
	doc := &huma.Operation{
		OperationID: op.ID, Method: op.Method, Path: op.Path, Tags: []string{op.tag}, Summary: op.summary,
		Description: op.describe(), Parameters: op.Params, Responses: map[string]*huma.Response{},
	}
	if op.Body != nil {
		doc.RequestBody = &huma.RequestBody{Required: !op.Body.Optional || op.Body.needed, Content: map[string]*huma.MediaType{}}
		for _, f := range op.Body.Formats {
			schema := schemaOf(schemas, op.Body.of)
			if op.Body.narrower != nil {
				schema = &huma.Schema{AllOf: []*huma.Schema{schema, op.Body.narrower}}
			}
			doc.RequestBody.Content[f] = &huma.MediaType{Schema: schema}
		}
		if op.Body.Raw {
			doc.RequestBody.Content[anyFormat] = &huma.MediaType{Schema: &huma.Schema{
				Type: huma.TypeString, Format: "binary", Description: "With type in the query: the payload as it is.",
			}}
		}
		doc.MaxBodyBytes = op.Body.Limit
	}
	if op.anyBody > 0 {
		doc.RequestBody = &huma.RequestBody{
			Description: "Any bytes, at most as many as api.max_body of the configuration.",
			Content:     map[string]*huma.MediaType{anyFormat: {Schema: &huma.Schema{}}},
		}
		doc.MaxBodyBytes = op.anyBody
	}
	for status, a := range op.answers {
		r := &huma.Response{Description: a.text, Headers: map[string]*huma.Param{}}
		switch of := a.of.(type) {
		case nil:
		case anyBytes:
			r.Content = map[string]*huma.MediaType{anyFormat: {Schema: &huma.Schema{}}}
		case streamDoc:
			r.Content = map[string]*huma.MediaType{StreamFormat: {Schema: of.schema(schemas)}}
		default:
			r.Content = map[string]*huma.MediaType{JSONFormat: {Schema: schemaOf(schemas, of)}}
		}
		for _, name := range a.headers {
			r.Headers[name] = headerDocs[name]
		}
		if status == anyStatus {
			doc.Responses["default"] = r
		} else {
			doc.Responses[strconv.Itoa(status)] = r
		}
	}
	all := op.Kinds()
	for _, k := range all {
		doc.Responses[strconv.Itoa(k.Status)] = &huma.Response{ // the same again for each kind of the status
			Description: describeKinds(k.Status, all),
			Headers:     problemHeaders(k.Status),
			Content: map[string]*huma.MediaType{
				"application/problem+json": {Schema: schemaOf(schemas, wire.Problem{})},
			},
		}
	}
	return doc
}

// describe returns the description with the scope.
func (op Operation) describe() string {
	if op.Scope == "" {
		return op.description
	}
	return strings.TrimSpace(op.description + " Needs the scope " + string(op.Scope) + ".")
}

// Kinds returns the kinds of all problems that the operation may answer with. A body and a query
// are checked also if the operation accepts none.
func (op Operation) Kinds() []problem.Kind {
	all := append([]problem.Kind{
		problem.UnreadableBody, problem.TooLarge, problem.InvalidRequest, problem.InternalFault,
	}, op.Refusals...)
	if slices.Contains(op.Refusals, problem.StorageUnavailable) {
		all = append(all, problem.StoredDamaged)
		if op.Method != http.MethodGet {
			all = append(all, problem.OutcomeUnknown)
		}
	}
	if op.Body != nil {
		all = append(all, problem.MalformedJSON, problem.UnsupportedMedia)
	}
	switch op.ID {
	case "livez": // which the program answers from its start
	case "readyz":
		all = append(all, problem.Starting)
	default:
		all = append(all, problem.Starting, problem.Overloaded)
	}
	return all
}

func schemaOf(schemas huma.Registry, v any) *huma.Schema {
	return schemas.Schema(reflect.TypeOf(v), true, "")
}

// streamDoc documents an answer that is a stream of events.
type streamDoc interface {
	schema(schemas huma.Registry) *huma.Schema
}

// eventStream documents an answer that is a stream of events; data is a value of the type of their
// data.
type eventStream struct {
	data  any
	event string // empty: state, of a job, with an id
}

// schema describes the stream as the list of its events, because OpenAPI 3.1 cannot describe
// a sequence of events.
func (e eventStream) schema(schemas huma.Registry) *huma.Schema {
	text := func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: doc} }
	one := &huma.Schema{
		Type: huma.TypeObject, Required: []string{"event", "data"}, AdditionalProperties: false,
		Properties: map[string]*huma.Schema{
			"event": {Type: huma.TypeString, Enum: []any{cmp.Or(e.event, StateEvent)}},
			"data":  schemaOf(schemas, e.data),
		},
	}
	if e.event == "" {
		one.Required = append(one.Required, "id")
		one.Properties["id"] = text("Names this state of the job; send the last one as Last-Event-ID.")
	}
	return &huma.Schema{
		Title: "Server-sent events", Type: huma.TypeArray, Description: "Each element is one event.",
		Items: one,
	}
}

// figureEvents documents the events of a stream of figures.
type figureEvents struct{}

func (figureEvents) schema(schemas huma.Registry) *huma.Schema {
	event := func(name string, data any) *huma.Schema {
		return &huma.Schema{
			Type: huma.TypeObject, Required: []string{"event", "data"}, AdditionalProperties: false,
			Properties: map[string]*huma.Schema{
				"event": {Type: huma.TypeString, Enum: []any{name}}, "data": schemaOf(schemas, data),
			},
		}
	}
	return &huma.Schema{
		Title: "Server-sent events", Type: huma.TypeArray, Description: "Each element is one event.",
		Items: &huma.Schema{OneOf: []*huma.Schema{
			event(HistoryEvent, wire.FigureHistory{}), event(OverviewEvent, wire.Overview{}),
			event(TenantsEvent, wire.TenantLines{}),
			event(TenantHistoryEvent, wire.TenantHistory{}), event(TenantEvent, wire.TenantNow{}),
			event(PoolsEvent, wire.PoolLines{}), event(PoolHistoryEvent, wire.PoolHistory{}),
			event(PoolEvent, wire.PoolNow{}), event(PoolSharesEvent, wire.PoolShares{}),
		}},
	}
}
