package main

import (
	"errors"
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/config"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/shaper"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Print the problems of a configuration, or its settings."`
}

func (configCmd) Help() string {
	return `Example:
  sluice config check sluice.yaml`
}

// sourceFlags are the flags of settings and routes.
type sourceFlags struct {
	Route []string `sep:"none" placeholder:"NAME=URL" help:"Deliver the jobs of the route NAME to URL; repeatable. The same as routes.NAME.url in the file and the variable SLUICE_ROUTE_NAME_URL."`

	kong.Plugins // the flags of the settings
}

func (f *sourceFlags) sources(a *console.App, file string) config.Sources {
	return config.Sources{File: file, Environ: a.Environ, Flags: settingValues(f.Plugins), Routes: f.Route}
}

type configCheckCmd struct {
	File string `arg:"" optional:"" env:"SLUICE_CONFIG" help:"Configuration file (YAML) [none]."`
	JSON bool   `help:"Print the settings as JSON."`

	sourceFlags
}

func (configCheckCmd) Help() string {
	return `Example:
  sluice config check sluice.yaml
  sluice config check --route default=http://127.0.0.1:9000/orders

The command reads the file, the environment and the flags like sluice serve with the same arguments,
and starts nothing. It prints all problems, each with its path, value and rule. Without problems it
prints every setting in force with its source; secrets are hidden.

Exit codes: 0 no problems, 2 problems.

Next: sluice serve --config FILE. Settings of tenants that were changed through the API outrank the
file: sluice tenant get NAME prints them.`
}

func (c *configCheckCmd) Run(a *console.App) error {
	for _, note := range config.Strays(a.Environ) {
		fmt.Fprintln(a.Err, "sluice: note:", note)
	}
	settings, err := config.Check(c.sources(a, c.File))
	var problems shaper.Problems
	if errors.As(err, &problems) && c.File != "" {
		// The file is an argument of this command, not the flag --config.
		for i, p := range problems {
			if p.Field == "--config" {
				problems[i].Field = "FILE"
			}
		}
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return console.PrintJSON(a.Out, map[string]any{"settings": settings})
	}
	rows := [][]string{{"KEY", "VALUE", "FROM"}}
	for _, s := range settings {
		rows = append(rows, []string{s.Key, console.OneLine(s.Value), s.From})
	}
	if err := console.PrintTable(a.Out, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.Err, "No problems.")
	return nil
}
