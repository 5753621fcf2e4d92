package main

import (
	"fmt"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/queue"
)

type upgradeCmd struct {
	Check upgradeCheckCmd `cmd:"" help:"Say whether this version can take over the store, with your configuration."`
}

func (upgradeCmd) Help() string {
	return `Example:
  sluice upgrade check sluice.yaml`
}

type upgradeCheckCmd struct {
	File string `arg:"" optional:"" env:"SLUICE_CONFIG" help:"Configuration file (YAML) [none]."`
	JSON bool   `help:"Print JSON."`

	sourceFlags
}

func (upgradeCheckCmd) Help() string {
	return `Example:
  sluice upgrade check sluice.yaml

Run it with the new version, on the file of the version that runs, before you replace anything. The
command reads the file, the environment and the flags like sluice serve with the same arguments, and
the store at redis.url. It writes nothing there. It prints

- each setting that this version does not take, with its path, value and rule;
- the schema of the stored data, and the ones that this version reads and writes. While it writes the
  stored one, the version that runs now can be started again;
- the settings of tenants and pools that the API has set to other values than the file.

Exit codes: 0 it can take over, 1 the store would refuse it or does not answer, 2 the configuration
has problems.

Next: docs/deploy.md, "Upgrade and roll back".`
}

// upgrade is the JSON output.
type upgrade struct {
	Version string `json:"version"`
	Schema  struct {
		Stored int `json:"stored"` // 0: there is no store
		Oldest int `json:"oldest"` // that this version reads
		Writes int `json:"writes"`
	} `json:"schema"`
	Shards int      `json:"shards"`
	Notes  []string `json:"notes"`
}

func (c *upgradeCheckCmd) Run(a *cli.App) error {
	cfg, _, err := c.check(a, c.File)
	if err != nil {
		return err
	}
	if cfg.Redis.URL == "" {
		return cli.Usagef("redis.url is not set: a private redis-server belongs to the process that runs; " +
			"sluice config check FILE checks the file")
	}
	found, err := preflight(a, cfg)
	if err != nil {
		return err
	}
	if c.JSON {
		out := upgrade{Version: build().Version, Shards: found.Shards, Notes: append([]string{}, found.Notes...)}
		out.Schema.Stored, out.Schema.Oldest, out.Schema.Writes = found.Schema, queue.OldestSchema, queue.Schema
		return cli.PrintJSON(a.Out, out)
	}
	stored, back := "none", "nothing is stored"
	if found.Shards > 0 {
		stored, back = fmt.Sprintf("schema %d in %d shards", found.Schema, found.Shards), "by the backup alone"
		if found.Schema == queue.Schema {
			back = "start the version that runs now again"
		}
	}
	return cli.PrintTable(a.Out, [][]string{
		{"configuration", "no problems"},
		{"stored data", stored},
		{"this version", fmt.Sprintf("%s reads schema %d to %d and writes %[3]d", build().Version, queue.OldestSchema, queue.Schema)},
		{"way back", back},
	})
}
