package main

import (
	"os/exec"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
)

type serveCmd struct {
	Config string `short:"c" placeholder:"FILE" env:"SLUICE_CONFIG" help:"Configuration file (YAML)."`
	Roles  string `default:"api,worker" placeholder:"LIST" env:"SLUICE_ROLES" help:"Roles of this process: api, worker or both [api,worker]."`
	Dev    bool   `help:"Store jobs in memory if redis.url is not set and no redis-server is on PATH. They are lost on exit."`

	sourceFlags
}

func (serveCmd) Help() string {
	return `Example:
  sluice serve --config sluice.yaml
  sluice serve --config sluice.yaml --roles worker --admin 127.0.0.1:9091
  sluice serve --route default=http://127.0.0.1:9000/orders

Settings come from the defaults, the file, the environment and the flags; each overrides the ones
before it. At least one route is required: in the file, by --route or by a variable.

Jobs are stored in the Redis of redis.url. Without redis.url, sluice starts a private redis-server
with its data in redis.data_dir. Processes cannot share that one, so split roles need redis.url.

A changed file is read within a second, at once on SIGHUP, also one that a setting refers to. Its
tenants, tiers and pools take effect, how upstreams are called, and the certificates of listeners; all
other settings need a restart. A file with a mistake changes nothing. SIGHUP applies an unchanged
file too, if the file of another process is in force.

SIGTERM or SIGINT stops the process in order: readiness returns 503, new jobs are refused, and
running deliveries have worker.grace (20s) to finish. A second signal stops it at once.

Exit codes: 0 stopped in order, 1 failed, 2 bad usage or bad configuration, with all problems
listed.

Next: sluice top shows the running server.`
}

func (c *serveCmd) Run(a *cli.App) error {
	sources := c.sources(a, c.Config)
	cfg, loadErr := config.Load(sources)
	problems, _ := loadErr.(shaper.Problems)
	if loadErr != nil && problems == nil {
		return loadErr
	}
	r, rolesProblems := process.ParseRoles(c.Roles)
	problems = append(problems, rolesProblems...)
	if r.Split() && cfg.Redis.URL == "" && len(problems) == 0 {
		problems = append(problems, shaper.Problem{Field: "redis.url", Value: "not set",
			Rule: "must be set when --roles is not api,worker: a private redis-server cannot be shared"})
	}
	if err := problems.Err(); err != nil {
		return err
	}
	embedded := false
	if c.Dev && cfg.Redis.URL == "" {
		_, err := exec.LookPath("redis-server")
		embedded = err != nil
	}
	p := &process.Process{
		Config: cfg, Version: build(), Roles: r, Embedded: embedded,
		Log:    cli.NewLogger(a.Err, cfg.Log.Level),
		Stderr: a.Err,
		Getenv: func(name string) string { return a.Env(name, "") },
	}
	for _, note := range append(config.Strays(a.Environ), cfg.Notes...) {
		p.Log.Warn(note)
	}
	if c.Config != "" || len(cfg.Files) > 0 {
		load := func() (config.Config, error) { return config.Load(sources) }
		p.Reloader = process.NewReloader(c.Config, cfg, load, p.Log)
	}
	return p.Run(a.Ctx)
}
