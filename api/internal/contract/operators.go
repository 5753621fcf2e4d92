package contract

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
)

// Operators returns the operations on operators and their sessions.
func Operators() []Operation {
	const tag, path = "Operators", "/v1/operators"
	return []Operation{{
		ID: "create-operator", Action: "operator.create", role: operators.Admin,
		Method: http.MethodPost, Path: path, tag: tag, summary: "Create an operator",
		description: "The token is shown once. There may be 1,000 operators.",
		Body:        jsonBody(wire.OperatorRequest{}, MaxSmallBody, false),
		answers:     map[int]Answer{http.StatusCreated: {"The operator.", wire.NewOperator{}, nil}},
		Refusals:    append([]problem.Kind{problem.OperatorExists, problem.TooManyOperators}, operatorKinds...),
	}, {
		ID: "list-operators", role: operators.Admin, Method: http.MethodGet, Path: path, tag: tag,
		summary:     "List the operators",
		description: "The list does not contain the tokens.",
		answers:     map[int]Answer{http.StatusOK: {"The operators, the oldest first.", wire.OperatorList{}, nil}},
		Refusals:    operatorKinds,
	}, {
		ID: "revoke-operator", Action: "operator.revoke", role: operators.Admin,
		Method: http.MethodDelete, Path: path + "/{operator}", tag: tag, summary: "Revoke an operator",
		description: "Requests with the token are refused from one second later.",
		Params:      []*huma.Param{operatorPathParam},
		answers:     map[int]Answer{http.StatusNoContent: {"The operator is revoked.", nil, nil}},
		Refusals:    append([]problem.Kind{problem.UnknownOperator}, operatorKinds...),
	}, {
		ID: "get-self", Method: http.MethodGet, Path: "/v1/self", tag: tag, summary: "Read who sends the request",
		answers: map[int]Answer{http.StatusOK: {"The operator.", wire.Self{}, nil}}, Refusals: operatorKinds,
	}, {
		ID: "list-sessions", Method: http.MethodGet, Path: "/v1/sessions", tag: tag,
		summary:     "List the sessions of the dashboard",
		description: "Admins see all of them, others their own.",
		answers:     map[int]Answer{http.StatusOK: {"The sessions, the oldest first.", wire.SessionList{}, nil}},
		Refusals:    operatorKinds,
	}, {
		ID: "end-session", Action: "session.revoke", role: operators.Viewer,
		Method: http.MethodDelete, Path: "/v1/sessions/{session}", tag: tag, summary: "End a session of the dashboard",
		description: "Admins end any session, others their own. Requests of the session are refused from one second later.",
		Params:      []*huma.Param{sessionPathParam},
		answers:     map[int]Answer{http.StatusNoContent: {"The session has ended.", nil, nil}},
		Refusals:    append([]problem.Kind{problem.UnknownSession}, operatorKinds...),
	}}
}
