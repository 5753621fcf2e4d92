package contract

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
)

// Bounds of a page of the audit.
const (
	DefaultEntries = 100
	MaxEntries     = 1000
)

// Audit returns the operation that reads the audit.
func Audit() []Operation {
	text := func(name, doc string) *huma.Param {
		return &huma.Param{Name: name, In: "query", Description: doc, Schema: textSchema(1, 300)}
	}
	instant := func(name, doc string) *huma.Param {
		return &huma.Param{Name: name, In: "query", Description: doc,
			Schema: &huma.Schema{Type: huma.TypeString, Format: "date-time"}}
	}
	return []Operation{{
		ID: "list-audit", role: operators.Admin, Method: http.MethodGet, Path: "/v1/audit", tag: "Audit",
		summary: "Read the audit",
		description: "Who did what on the admin listener, the newest first. Each entry has the hash of the one " +
			"before it. Reading is not recorded.",
		Params: []*huma.Param{
			instant("since", "Only entries at this time or later."),
			instant("until", "Only entries before this time."),
			text("actor", "Only entries of this actor."),
			text("action", "Only entries of this action. With a dot at its end, such as tenant., those of all actions that begin so."),
			text("subject", "Only entries about this tenant, pool, operator or job."),
			{Name: "limit", In: "query", Description: "Entries per page; 100 if absent.", Schema: pageSchema(MaxEntries)},
			{Name: "cursor", In: "query", Description: "next_cursor of the previous page.", Schema: textSchema(1, 0)},
		},
		answers:  map[int]Answer{http.StatusOK: {"One page.", wire.AuditList{}, nil}},
		Refusals: append([]problem.Kind{problem.StorageUnavailable}, operatorKinds...),
	}}
}
