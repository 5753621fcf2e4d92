package tenants

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/access"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
)

type tenantHistoryCmd struct {
	access.AdminFlags
	Name string `arg:"" help:"Name of the tenant."`
	JSON bool   `help:"Print JSON: {\"items\": […]}."`
}

func (tenantHistoryCmd) Help() string {
	return `Example:
  sluice tenant history acme

The output has the last 100 changes through the admin listener, newest first: when, by whom, why,
and what changed. A dash means that the configuration decides.`
}

func (c *tenantHistoryCmd) Run(a *console.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	history, err := remote.History(a.Ctx, c.Name)
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	return PrintHistory(a, history, c.JSON)
}

// PrintHistory prints the changes of a tenant or a pool.
func PrintHistory(a *console.App, history wire.History, asJSON bool) error {
	if asJSON {
		return console.PrintJSON(a.Out, history)
	}
	if len(history.Items) == 0 {
		fmt.Fprintln(a.Err, "No changes were made through the admin listener.")
		return nil
	}
	rows := [][]string{{"AT", "REVISION", "BY", "REASON", "CHANGE"}}
	for _, e := range history.Items {
		rows = append(rows, []string{
			e.At.UTC().Format(time.RFC3339), strconv.FormatInt(e.Revision,
				10), e.Actor, console.OrDash(e.Reason), entryText(e),
		})
	}
	return console.PrintTable(a.Out, rows)
}

// entryText describes a change.
func entryText(e wire.HistoryEntry) string {
	switch e.Action {
	case "unhold":
		return "holds ended"
	case "unhold-charge":
		return "hold and charge ended"
	case "purge", "replay":
		if e.Filter == nil { // of a later version
			break
		}
		filter := *e.Filter
		if e.Action == "replay" {
			filter.State = "dead"
		}
		return fmt.Sprintf("%s of %s: %d", e.Action, filterText(filter), e.Count)
	}
	return changeText(e.Before, e.After)
}

// changeText returns the settings that differ.
func changeText(before, after wire.Overrides) string {
	was, is := overrideTexts(before), overrideTexts(after)
	routes := map[string]bool{}
	for _, set := range []map[string]wire.RouteOverrides{before.Routes, after.Routes} {
		for name := range set {
			routes[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		was = append(was, routeTexts("routes."+name+".", before.Routes[name])...)
		is = append(is, routeTexts("routes."+name+".", after.Routes[name])...)
	}
	var changes []string
	for i := range was {
		if was[i].value != is[i].value {
			changes = append(changes, fmt.Sprintf("%s %s → %s", was[i].name, console.OrDash(was[i].value),
				console.OrDash(is[i].value)))
		}
	}
	return console.OrDash(strings.Join(changes, ", "))
}

type overrideText struct{ name, value string }

// overrideTexts returns the settings of a tenant as readable text, in the order of printTenant.
// Empty is not set.
func overrideTexts(o wire.Overrides) []overrideText {
	return append(routeTexts("", o.RouteOverrides), overrideText{"draining", pointed(o.Draining)},
		overrideText{"tier", o.Tier})
}

// routeTexts returns the settings that a route can have.
func routeTexts(prefix string, o wire.RouteOverrides) []overrideText {
	rates := ""
	if o.Rates != nil {
		rates = cmp.Or(console.RatesText(*o.Rates), "none")
	}
	texts := []overrideText{
		{"rate", rateText(o.Rate)}, {"burst", pointed(o.Burst)}, {"rates", rates}, {"capacity",
			pointed(o.Capacity)}, {"capacity_bytes", pointed(o.CapacityBytes)},
		{"concurrency", pointed(o.Concurrency)},
		{"max_wait_ms", pointed(o.MaxWaitMS)}, {"paused", pointed(o.Paused)}, {"max_cost", pointed(o.MaxCost)}, {"weight", pointed(o.Weight)},
		{"reserve", rateText(o.Reserve)},
	}
	for i := range texts {
		texts[i].name = prefix + texts[i].name
	}
	return texts
}

// rateText is empty for nil.
func rateText(r *wire.Rate) string {
	if r == nil {
		return ""
	}
	return console.RateText(*r)
}

func pointed[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}
