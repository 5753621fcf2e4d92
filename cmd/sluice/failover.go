package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/queue"
)

// redisCmd has the commands on the Redis of Sluice.
type redisCmd struct {
	Failover failoverCmd `cmd:"" help:"Have a replica of Redis take over, without a loss."`
}

func (redisCmd) Help() string {
	return `Example:
  sluice redis failover --config sluice.yaml`
}

type failoverCmd struct {
	Config string `short:"c" placeholder:"FILE" env:"SLUICE_CONFIG" help:"Configuration file (YAML), for redis.url."`
	Master string `filled:"" placeholder:"HOST:PORT" help:"The master to replace; required in a cluster."`
	JSON   bool   `help:"Print the result as JSON."`

	sourceFlags
}

func (failoverCmd) Help() string {
	return `Example:
  sluice redis failover --config sluice.yaml
  sluice redis failover --redis-url "redis+sentinel://10.0.0.1:26379?master_name=main"
  sluice redis failover --config sluice.yaml --master 10.0.0.5:6379

A failover by SENTINEL FAILOVER alone may lose the latest writes. With Sentinel the command first
checks that the replicas are in sync. It pauses writes for at most eight seconds at a time (CLIENT
PAUSE), waits until the replicas have all of them, and then runs SENTINEL FAILOVER. In a cluster a
replica of the master that you name takes over by CLUSTER FAILOVER, which does the same by itself.

Processes of Sluice run on. Clients get 503 with Retry-After for about two seconds. The command talks
to Redis and to Sentinel itself, with redis.url; its user needs CLIENT and INFO.

Exit codes: 0 a replica has taken over, 1 it has not: the message says what to do, 2 bad usage or bad
configuration.

Next: maintain the former master. It is a replica now.`
}

func (c *failoverCmd) Run(a *cli.App) error {
	from := c.sources(a, c.Config)
	if c.Config == "" && len(from.Routes) == 0 {
		from.Routes = []string{"default=http://127.0.0.1:9/"} // it needs none, but a configuration does
	}
	cfg, err := config.Load(from)
	if err != nil {
		return err
	}
	out, err := queue.FailOver(a.Ctx, queue.FailoverOptions{
		URL: cfg.Redis.URL, Master: c.Master, Step: func(text string) { fmt.Fprintln(a.Err, text+" …") },
	})
	if errors.Is(err, queue.ErrNoEngine) {
		return cli.UsageError(strings.TrimPrefix(err.Error(), queue.ErrNoEngine.Error()+": "))
	} else if err != nil {
		return err
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, out)
	}
	fmt.Fprintf(a.Out, "%s has taken over from %s.", out.To, out.From)
	if out.Paused > 0 {
		fmt.Fprintf(a.Out, " Writes were paused for %v.", out.Paused.Round(10*time.Millisecond))
	}
	fmt.Fprintln(a.Out)
	return nil
}
