package policies

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

type tenantHistoryCmd struct {
	cli.AdminFlags
	Name string `arg:"" help:"Name of the tenant."`
	JSON bool   `help:"Print JSON: {\"items\": […]}."`
}

func (tenantHistoryCmd) Help() string {
	return `Example:
  sluice tenant history acme

The output has the last 100 changes through the admin listener, newest first: when, by whom, why,
and what changed. A setting that is reset follows the configuration again. A command that undoes the
newest change follows.`
}

func (c *tenantHistoryCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	history, err := remote.History(a.Ctx, c.Name)
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	return printHistory(a, history, "tenant set "+cli.ShellWord(c.Name), c.JSON)
}

// printHistory prints the changes of a tenant or a pool, and how the command set undoes the newest.
func printHistory(a *cli.App, history wire.History, set string, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(a.Out, history)
	}
	if len(history.Items) == 0 {
		fmt.Fprintln(a.Err, "No settings were changed through the admin listener. For keys, see sluice audit.")
		return nil
	}
	rows := [][]string{{"AT", "REVISION", "BY", "REASON", "CHANGE"}}
	for _, e := range history.Items {
		rows = append(rows, []string{
			e.At.UTC().Format(time.RFC3339), strconv.FormatInt(e.Revision,
				10), e.Actor, cli.OrDash(e.Reason), entryText(e),
		})
	}
	if err := cli.PrintTable(a.Out, rows); err != nil {
		return err
	}
	if flags := undo(history.Items[0]); flags != "" {
		fmt.Fprintf(a.Err, "To undo the newest change: sluice %s%s\n", set, flags)
	}
	return nil
}

// undo returns the flags that undo a change of settings. They are empty where other commands do it,
// as for routes and pauses.
func undo(e wire.HistoryEntry) (flags string) {
	if e.Action != "" {
		return ""
	}
	was, is := overrideTexts(e.Before), overrideTexts(e.After)
	keys := map[string]string{"tier": "tier"}
	for _, s := range shaper.Settings() {
		if !s.NoFlag {
			keys[s.Name] = s.Key()
		}
	}
	var reset []string
	for _, name := range settingNames(e.Before, e.After) {
		key, known := keys[name]
		text := was[name]
		switch {
		case text == is[name]:
		case !known:
			return ""
		case text == "":
			reset = append(reset, key)
		default:
			if text == shaper.CapacityText(shaper.MaxCapacity) {
				text = strconv.Itoa(shaper.MaxCapacity)
			}
			flags += " --" + strings.ReplaceAll(key, "_", "-") + "=" + cli.ShellWord(text)
		}
	}
	if reset != nil {
		flags += " --reset=" + strings.Join(reset, ",")
	}
	return flags
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
func changeText(before, after shaper.Overrides) string {
	was, is := overrideTexts(before), overrideTexts(after)
	var changes []string
	for _, name := range settingNames(before, after) {
		switch before, after := was[name], is[name]; {
		case before == after:
		case before == "":
			changes = append(changes, name+" set to "+after)
		case after == "":
			changes = append(changes, name+" reset, was "+before)
		default:
			changes = append(changes, name+" "+before+" → "+after)
		}
	}
	return cli.OrDash(strings.Join(changes, ", "))
}

// settingNames returns the names of all settings, those of the routes behind those of the tenant.
func settingNames(of ...shaper.Overrides) []string {
	names := append(shaper.Names(shaper.Settings()), "tier")
	routes := map[string]bool{}
	for _, o := range of {
		for route := range o.Routes {
			routes[route] = true
		}
	}
	for _, route := range slices.Sorted(maps.Keys(routes)) {
		for _, s := range shaper.SettingsOfTenants() {
			names = append(names, "routes."+route+"."+s.Name)
		}
	}
	return names
}

// overrideTexts returns the settings that are set as text, by name.
func overrideTexts(o shaper.Overrides) map[string]string {
	texts := map[string]string{}
	note := func(prefix string, o shaper.Overrides) {
		for _, s := range shaper.Settings() {
			if text := s.Text(o); text != "" {
				texts[prefix+s.Name] = text
			}
		}
	}
	note("", o)
	if o.Tier != nil {
		texts["tier"] = *o.Tier
	}
	for route, own := range o.Routes {
		note("routes."+route+".", own)
	}
	return texts
}
