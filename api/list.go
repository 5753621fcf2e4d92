package api

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
)

// defaultJobs is how many jobs a page has when the client does not say.
const defaultJobs = 100

const listDescription = "Jobs in one state or in all, newest first within each state and route, page by page. A job that moves meanwhile may be missing, or on two pages. " +
	"With type, created_after or created_before a page may have fewer jobs than the limit, even none: the list ends where there is no next_cursor."

// listParams are the query of GET /v1/jobs.
func listParams() []*huma.Param {
	state := textSchema(0, 0)
	for _, name := range stateNames(queue.ListStates()) {
		state.Enum = append(state.Enum, name)
	}
	limit := pageSchema(wire.MaxPage)
	limit.Default = defaultJobs
	instant := &huma.Schema{Type: huma.TypeString, Format: "date-time"}
	return []*huma.Param{
		tenantParam,
		{Name: "state", In: "query", Required: true, Schema: state,
			Description: "The state the jobs are in, or all. Of the jobs that succeeded, expired or were cancelled, the most recent 1,000 of a flow are listed."},
		{Name: "route", In: "query", Schema: textSchema(1, wire.MaxTypeBytes), Description: "Only jobs for this configured route; every route if absent."},
		{Name: "type", In: "query", Schema: textSchema(1, wire.MaxTypeBytes), Description: "Only jobs of this type."},
		{Name: "created_after", In: "query", Schema: instant, Description: "Only jobs created at this instant or later."},
		{Name: "created_before", In: "query", Schema: instant, Description: "Only jobs created before."},
		{Name: "idempotency_key", In: "query", Schema: textSchema(1, wire.MaxKeyBytes),
			Description: "Only the job with this key. A job past its retention has no route and no type."},
		{Name: "limit", In: "query", Schema: limit, Description: "Jobs a page; 100 if absent."},
		{Name: "cursor", In: "query", Schema: textSchema(1, 0), Description: "next_cursor of the page before."},
	}
}

// listJobs is GET /v1/jobs.
func (s *Server) listJobs(c *call) (*answer, error) {
	asked, err := listOf(c.r.URL.Query())
	if err != nil {
		return nil, err
	}
	if _, known := s.cfg.Routes[asked.Route]; asked.Route != "" && !known {
		return nil, unknownRouteAt("query.route")
	}
	if err := s.reading(c.who.Tenant); err != nil {
		return nil, err
	}
	asked.Tenant = c.who.Tenant
	return s.page(c.r.Context(), asked, jobOf)
}

// page answers with the page of a list, whose jobs show makes.
func (s *Server) page(ctx context.Context, asked queue.List, show func(queue.Job) *wire.Job) (*answer, error) {
	page, err := s.backend.List(ctx, asked)
	if errors.Is(err, queue.ErrCursor) {
		return nil, badCursor()
	}
	if err != nil {
		return nil, err
	}
	out := wire.JobList{Items: make([]wire.Job, len(page.Jobs)), NextCursor: page.Next}
	for i, job := range page.Jobs {
		out.Items[i] = *show(job)
	}
	return ok(out), nil
}

// listOf reads the query but for the tenant; whether the route exists and the cursor is one is for
// others to say.
func listOf(query url.Values) (queue.List, error) {
	l := queue.List{
		State: queue.ListState(query.Get("state")), Route: query.Get("route"), Type: query.Get("type"), IdempotencyKey: query.Get("idempotency_key"),
		Cursor: query.Get("cursor"),
	}
	var rd reader
	wrong := func(name, kind, rule string) {
		rd.errs = append(rd.errs, wire.FieldError{Field: "query." + name, Kind: kind, Rule: rule})
	}
	states := strings.Join(stateNames(queue.ListStates()), ", ")
	switch {
	case !query.Has("state"):
		wrong("state", "nothing", "is required: all, or one of "+strings.TrimPrefix(states, "all, "))
	case !slices.Contains(queue.ListStates(), l.State):
		wrong("state", "string", "must be one of "+states)
	}
	for _, text := range []struct {
		name string
		most int
	}{{"route", wire.MaxTypeBytes}, {"type", wire.MaxTypeBytes}, {"idempotency_key", wire.MaxKeyBytes}} {
		if rule := textRule(query.Get(text.name), 1, text.most); query.Has(text.name) && rule != "" {
			wrong(text.name, "string", rule)
		}
	}
	for _, at := range []struct {
		name string
		to   *time.Time
	}{{"created_after", &l.CreatedAfter}, {"created_before", &l.CreatedBefore}} {
		if !query.Has(at.name) {
			continue
		}
		t, err := time.Parse(time.RFC3339, query.Get(at.name))
		if *at.to = t; err != nil || !isInstant(t) {
			wrong(at.name, "string", instantRule)
		}
	}
	if !l.CreatedBefore.IsZero() && !l.CreatedAfter.Before(l.CreatedBefore) {
		wrong("created_before", "string", "must be later than created_after")
	}
	if query.Has("cursor") && l.Cursor == "" {
		wrong("cursor", "string", cursorRule)
	}
	var err error
	if l.Limit, err = pageLimit(query, defaultJobs, wire.MaxPage); err != nil {
		rd.errs = append(rd.errs, problemOf(err).Errors...)
	}
	return l, rd.err()
}

func stateNames(states []queue.ListState) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}

// pageLimit is how many items the client wants on a page.
func pageLimit(query url.Values, otherwise, most int) (int, error) {
	if !query.Has("limit") {
		return otherwise, nil
	}
	text := query.Get("limit")
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most || strings.Trim(text, "0123456789") != "" {
		return 0, invalid("query.limit", "string", "must be a whole number from 1 to "+strconv.Itoa(most))
	}
	return n, nil
}

// pageSchema is the schema of a limit.
func pageSchema(most int) *huma.Schema {
	low, high := float64(1), float64(most)
	return &huma.Schema{Type: huma.TypeInteger, Minimum: &low, Maximum: &high}
}
