package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/config"
)

// starts are the configurations that init writes, by their names.
//
//go:embed starts/*.yaml
var starts embed.FS

// firsts are the first requests that fit them.
var firsts = map[string]string{
	"service": "sluice submit --tenant acme --type order.create '{\"sku\":1}'",
	"partner": "sluice key create acme   # prints KEY\n  SLUICE_KEY=KEY sluice submit --type order.create '{\"sku\":1}'",
	"forward": "curl -i http://127.0.0.1:8090/",
	"model": "sluice key create search   # prints KEY\n  curl http://127.0.0.1:8090/chat/completions -H 'Authorization: Bearer KEY' " +
		"-H 'Content-Type: application/json' -d '{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}'",
	"asynq": "sluice submit --tenant acme --type order.create '{\"sku\":1}'",
}

type initCmd struct {
	Case  string `arg:"" enum:"service,partner,forward,model,asynq" help:"What it is for: service, partner, forward, model or asynq."`
	File  string `arg:"" optional:"" default:"sluice.yaml" placeholder:"FILE" help:"File to write, - for the output [sluice.yaml]."`
	Force bool   `help:"Replace a file that exists."`
}

func (initCmd) Help() string {
	return `Example:
  sluice init service
  sluice init partner partner.yaml
  sluice init forward -

Writes a commented configuration to begin with, and prints what to do next:
  service   protect one service from bursts
  partner   share the limit of one partner's API among many tenants
  forward   put a queue in front of an API, without a change to clients or API
  model     share the quota of a language model among teams, by tokens
  asynq     hand jobs to asynq workers

Exit codes: 0 written, 1 the file exists or cannot be written.`
}

func (c *initCmd) Run(a *cli.App) error {
	text, err := starts.ReadFile("starts/" + c.Case + ".yaml")
	if err != nil {
		return err
	}
	if c.File == "-" {
		_, err := a.Out.Write(text)
		return err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if c.Force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	file, err := os.OpenFile(c.File, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: name another file, or replace it with --force", c.File)
	}
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if _, _, err := config.Check(config.Sources{File: c.File}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "wrote %s. Next, set what its comments say, then:\n  sluice config check %s\n  sluice serve --config %s\n"+
		"and in another terminal:\n  %s\n",
		c.File, cli.ShellWord(c.File), cli.ShellWord(c.File), firsts[c.Case])
	return err
}
