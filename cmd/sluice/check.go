package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/audit"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// checkExamples is the number of printed findings of a kind.
const checkExamples = 5

type checkCmd struct {
	Config string `short:"c" placeholder:"FILE" env:"SLUICE_CONFIG" help:"Configuration file (YAML), for redis.url and redis.data_dir."`
	Repair bool   `help:"Repair the findings; workers may run meanwhile."`
	JSON   bool   `help:"Print the findings as JSON."`

	sourceFlags
}

func (checkCmd) Help() string {
	return `Example:
  sluice check --config sluice.yaml
  sluice check --config sluice.yaml --repair

The command compares the counters of each flow with its queue, its scheduled jobs and its leases. It
compares each job with its index entry, each entry with its job, and each key with its type. Without
--repair it writes nothing. Processes may run meanwhile.

It opens the store itself, with the settings of sluice serve (redis.url). Without redis.url it
starts the private redis-server on redis.data_dir, so stop the sluice serve that uses it first.

Repair rebuilds a deleted queue from the stored jobs. It cannot restore jobs, policies and API keys
whose own keys are gone.

Exit codes: 0 no findings, 1 findings (also if they are repaired), 2 bad usage or bad configuration.

Next: after --repair, check again. A damaged key may hide others.`
}

// checkReport is what --json prints.
type checkReport struct {
	Checked  repair.Checked   `json:"checked"`
	Repaired bool             `json:"repaired"`
	Counts   map[string]int   `json:"counts"`
	Examples []repair.Finding `json:"examples"`
}

// record puts what a command did to the store into the audit. What is done is done, so a failure is
// only a warning.
func record(a *cli.App, q *queue.Queue, e audit.Entry, detail map[string]any) {
	if err := audit.Once(a.Ctx, store.Of(q), e, detail); err != nil {
		fmt.Fprintf(a.Err, "sluice: %v\n", err)
	}
}

// openStored opens the store of a process that has run with this configuration. It makes none: in a
// wrong directory, a command would find an empty store and report that all is well.
func openStored(ctx context.Context, cfg config.Config, log *slog.Logger) (*queue.Engine, error) {
	if cfg.Redis.URL == "" {
		if found, err := os.ReadDir(cfg.Redis.DataDir); err != nil || len(found) == 0 {
			return nil, shaper.Problems{{Field: "redis.data_dir", Value: cfg.Redis.DataDir,
				Rule: "must be the directory of a private redis-server that has run: it has no data. " +
					"Set the directory of the service, or redis.url"}}
		}
	}
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{URL: cfg.Redis.URL, DataDir: cfg.Redis.DataDir,
		AllowUnsafe: true, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	return engine, nil
}

func (c *checkCmd) Run(a *cli.App) (err error) {
	cfg, err := config.Load(c.sources(a, c.Config))
	if err != nil {
		return err
	}
	log := cli.NewLogger(a.Err, "error")
	engine, err := openStored(a.Ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	shards, err := queue.StoredShards(a.Ctx, engine)
	if err != nil {
		return fmt.Errorf("read the store: %w", err)
	}
	if shards == 0 {
		return shaper.Problems{{Field: "redis.url", Value: engine.String(),
			Rule: "must be a store of Sluice: the key sluice:meta is missing"}}
	}
	q, err := queue.Open(a.Ctx, engine, queue.Options{
		Shards: shards, Reporter: true, Logger: log, Encryption: queue.Encryption{Without: true}, // it reads no text
	})
	if err != nil {
		return fmt.Errorf("open the queue: %w", err)
	}
	defer func() { _ = q.Close() }()
	report := checkReport{Repaired: c.Repair, Counts: map[string]int{}, Examples: []repair.Finding{}}
	report.Checked, err = q.Check(a.Ctx, c.Repair, func(found []repair.Finding) error {
		for _, f := range found {
			if report.Counts[f.Kind]++; report.Counts[f.Kind] <= checkExamples {
				report.Examples = append(report.Examples, f)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("check the store: %w", err)
	}
	if c.Repair && len(report.Counts) > 0 {
		record(a, q, audit.Entry{Action: "store.repair", Outcome: audit.OK}, map[string]any{"findings": report.Counts})
	}
	return c.print(a, report)
}

func (c *checkCmd) print(a *cli.App, r checkReport) error {
	if c.JSON {
		if err := cli.PrintJSON(a.Out, r); err != nil {
			return err
		}
	} else {
		for _, kind := range slices.Sorted(maps.Keys(r.Counts)) {
			fmt.Fprintf(a.Out, "%s: %d (%s)\n", kind, r.Counts[kind], repair.Kinds[kind])
			for _, f := range r.Examples {
				if f.Kind == kind {
					fmt.Fprintf(a.Out, "  shard %d %s: %s\n", f.Shard, cli.OneLine(f.Name),
						cli.OneLine(f.Detail))
				}
			}
		}
		fmt.Fprintf(a.Out, "Checked %d shards, %d tenants, %d flows and %d jobs.\n", r.Checked.Shards,
			r.Checked.Tenants, r.Checked.Flows, r.Checked.Jobs)
	}
	if r.Counts["unreadable"] > 0 {
		fmt.Fprintln(a.Err, "No repair knows what belongs in the place of values that cannot be read: delete the keys "+
			"or the fields that the findings name, and check again.")
	}
	switch {
	case len(r.Counts) == 0:
		return nil
	case c.Repair:
		fmt.Fprintln(a.Err, "Repaired. Check again, because a damaged key may hide others.")
	default:
		fmt.Fprintln(a.Err, "sluice check --repair repairs these findings.")
	}
	return cli.ErrReported
}
