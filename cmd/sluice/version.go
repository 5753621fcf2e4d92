package main

import (
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// Set at build time by -ldflags "-X main.version=… -X main.commit=…". If empty, the module's build
// information is used.
var (
	version string
	commit  string
)

// build returns the version of this program.
func build() api.VersionInfo {
	v := api.VersionInfo{Version: version, Commit: commit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && v.Commit == "" {
				v.Commit = s.Value
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	if v.Commit == "" {
		v.Commit = "unknown"
	}
	return v
}

type versionCmd struct {
	JSON bool `help:"Print JSON."`
}

func (versionCmd) Help() string {
	return `Example:
  sluice version
  sluice version --json

The output has the version, its commit and the version of Go, and whether the program runs in FIPS
140-3 mode.`
}

func (c versionCmd) Run(a *cli.App) error {
	v := build()
	if c.JSON {
		return cli.PrintJSON(a.Out, map[string]any{"version": v.Version, "commit": v.Commit,
			"go": v.Go, "fips140": fips140.Enabled()})
	}
	mode := ""
	if fips140.Enabled() {
		mode = ", FIPS 140-3 mode"
	}
	_, err := fmt.Fprintf(a.Out, "sluice %s, commit %s, %s%s\n", v.Version, v.Commit, v.Go, mode)
	return err
}
