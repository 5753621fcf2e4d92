package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/internal/audit"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// codecCmd has the commands on keys that encrypt the store.
type codecCmd struct {
	NewKey newKeyCmd `cmd:"" help:"Make a key for codec.key_file."`
}

func (codecCmd) Help() string {
	return `Example:
  sluice codec new-key --file codec.key`
}

type newKeyCmd struct {
	File string `placeholder:"FILE" help:"Put the key before those of this file, or make it, with mode 0600 [print the key]."`
}

func (newKeyCmd) Help() string {
	return `Example:
  sluice codec new-key > codec.key        # the first key; umask 077 first
  sluice codec new-key --file codec.key   # a new first key; the former ones stay below it

A key is 32 random bytes in base64. Whoever has it can read what is stored; without it, what is stored
is lost. Keep a copy apart from the backups of Redis.

Next: set codec.key_file, or after a new first key: sluice store rotate-keys.`
}

func (c *newKeyCmd) Run(a *cli.App) error {
	if c.File == "" {
		fmt.Fprintln(a.Out, sealed.NewKey())
		return nil
	}
	added := "a new first key"
	if former, err := os.Stat(c.File); err != nil || former.Size() == 0 {
		added = "a key"
	}
	if err := sealed.AddKey(c.File); err != nil {
		return fmt.Errorf("add a key: %w", err)
	}
	fmt.Fprintf(a.Err, "%s has %s.\n", c.File, added)
	return nil
}

// storeCmd has the commands on the store itself.
type storeCmd struct {
	RotateKeys rotateCmd `cmd:"" help:"Make a new data key, and wrap all by the first key of codec.key_file or codec.command."`
}

func (storeCmd) Help() string {
	return `Example:
  sluice store rotate-keys --config sluice.yaml`
}

// othersWait is how long a rotation waits for processes that have another first key: they read a
// file after five seconds, and run a program within 25.
const othersWait = 30 * time.Second

type rotateCmd struct {
	Config string `short:"c" placeholder:"FILE" env:"SLUICE_CONFIG" help:"Configuration file (YAML), for redis.url and codec."`
	Force  bool   `help:"Go on although a process has another first key. Unless it has this key, too, it cannot read what others write from then on."`
	JSON   bool   `help:"Print the result as JSON."`

	sourceFlags

	waiting bool
}

func (rotateCmd) Help() string {
	return `Example:
  sluice codec new-key --file codec.key       # on one host; copy the file to all others
  sluice store rotate-keys --config sluice.yaml

Data keys encrypt what clients wrote. They are stored in Redis, encrypted ("wrapped") by a key of
codec.key_file, or of those that codec.command prints. rotate-keys makes a new data key, which all
processes use within ten seconds, and wraps all others by the first key. Then it names the keys that
nothing needs any more. What is stored is not encrypted again: it stays readable until its job is
deleted.

It waits up to 30 s while a live process has another first key, and then refuses, because that process
may lack this one. --force goes on: a process without this key logs that, and makes another data key by
its own, which all use; run the command again when all have the key. It opens the store itself, with
the settings of sluice serve (redis.url).

Exit codes: 0 done, 1 refused or failed: run it again, 2 bad usage or bad configuration.

Next: remove the other keys from codec.key_file on every host, or from what codec.command prints.
Backups of Redis from before need them.`
}

func (c *rotateCmd) rotate(a *cli.App, q *queue.Queue) (queue.RotatedKeys, error) {
	for began := time.Now(); ; {
		done, err := q.RotateKeys(a.Ctx, c.Force)
		if !errors.Is(err, queue.ErrOtherKeys) || time.Since(began) > othersWait {
			return done, err
		}
		if !c.waiting {
			c.waiting = true
			fmt.Fprintf(a.Err, "A process has another first key. Waiting up to %v for it to read this one.\n", othersWait)
		}
		select {
		case <-a.Ctx.Done():
			return done, a.Ctx.Err()
		case <-time.After(5 * time.Second):
		}
	}
}

func (c *rotateCmd) Run(a *cli.App) (err error) {
	from := c.sources(a, c.Config)
	if c.Config == "" && len(from.Routes) == 0 {
		from.Routes = []string{"default=http://127.0.0.1:9/"} // it needs none, but a configuration does
	}
	cfg, err := config.Load(from)
	if err != nil {
		return err
	}
	keys := process.EncryptionOf(cfg)
	if keys.ReadOnly = true; keys.KeyFile == "" && keys.KeyCommand == "" {
		return shaper.Problems{{Field: "codec.key_file", Rule: "must be set, or codec.command: the first key there wraps the keys of the store"}}
	}
	log := cli.NewLogger(a.Err, "error")
	engine, err := openStored(a.Ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	q, err := queue.Open(a.Ctx, engine, queue.Options{Reporter: true, Logger: log,
		Encryption: keys})
	if err != nil {
		return fmt.Errorf("open the queue: %w", err)
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	done, err := c.rotate(a, q)
	if err != nil {
		return fmt.Errorf("rotate the keys: %w", err)
	}
	record(a, q, audit.Entry{Action: "store.rotate-keys", Subject: done.DataKey, Outcome: audit.OK},
		map[string]any{"first": done.First, "wrapped": done.Wrapped, "force": c.Force})
	// Processes take the new data key by themselves within five seconds.
	for end := time.Now().Add(15 * time.Second); len(done.Lagging) > 0 && time.Now().Before(end); {
		select {
		case <-a.Ctx.Done():
			return a.Ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		if done.Lagging, err = q.LaggingKeys(a.Ctx, done.DataKey); err != nil {
			return fmt.Errorf("rotate the keys: %w", err)
		}
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, done)
	}
	fmt.Fprintf(a.Out, "New data key %s. The key %s wraps all %d keys of the store; %d other processes run.\n",
		done.DataKey, done.First, done.Wrapped, done.Processes)
	switch {
	case len(done.Lagging) > 0:
		fmt.Fprintf(a.Out, "%d processes still use the former data key: see their logs, and keep all keys in the file.\n", len(done.Lagging))
	case len(done.Removable) > 0:
		fmt.Fprintf(a.Out, "These keys may be removed from codec.key_file on every host, or from codec.command: %s (all lines but the first).\n",
			strings.Join(done.Removable, ", "))
	}
	return nil
}
