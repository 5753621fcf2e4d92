package policies

import (
	"fmt"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// KeyCmd is the command key with its subcommands.
type KeyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Create an API key of a tenant and print it once."`
	List   keyListCmd   `cmd:"" help:"List the API keys of a tenant, without the keys themselves."`
	Revoke keyRevokeCmd `cmd:"" help:"Revoke an API key of a tenant."`
}

func (KeyCmd) Help() string {
	return `Example:
  sluice key create acme --name ci
  sluice key list acme

The commands ask the admin listener. Clients send a key as Authorization: Bearer or X-API-Key; the
other commands of sluice read it from SLUICE_KEY. The server accepts keys if auth.mode contains
keys.`
}

type keyCreateCmd struct {
	cli.AdminFlags
	Tenant    string        `arg:"" help:"Name of the tenant."`
	Name      string        `placeholder:"TEXT" help:"Name of the key in the list."`
	ExpiresIn time.Duration `placeholder:"DURATION" help:"Lifetime, such as 720h [auth.keys.max_age of the server, else no end]."`
	Expires   string        `placeholder:"TIME" help:"End of the lifetime, such as 2027-01-31T00:00:00Z, or the lifetime as for --expires-in."`
	Scope     []string      `enum:"submit,read,cancel,replay,forward,work" placeholder:"SCOPE" help:"What requests with the key may do: submit, read, cancel, replay, forward; may be repeated [all of these]."`
	Route     []string      `placeholder:"ROUTE" help:"Route that the key may use; may be repeated [all]."`
	Type      []string      `sep:"none" placeholder:"TYPE" help:"Type of jobs that the key may use; may be repeated [all]."`
	Network   []string      `placeholder:"NETWORK" help:"Address, or prefix, of clients that may use the key, such as 192.0.2.0/24; may be repeated [all]."`
	JSON      bool          `help:"Print the key, its id, its times and its rights as JSON."`
}

func (keyCreateCmd) Help() string {
	return `Example:
  KEY=$(sluice key create acme --name ci)
  sluice key create acme --name contractor --expires-in 720h --json
  sluice key create acme --name shop --scope submit --route mail --network 192.0.2.0/24

The key is the only line on standard output. It cannot be read again, because only a digest is
stored. A tenant may have 100 keys, so that a new one can replace an old one without a gap.

Next: SLUICE_KEY=KEY sluice submit --type t 1`
}

func (c *keyCreateCmd) Run(a *cli.App) error {
	wanted := wire.KeyRequest{Name: c.Name, Scopes: c.Scope, Routes: c.Route, Types: c.Type, Networks: c.Network}
	switch {
	case c.Expires != "" && c.ExpiresIn != 0:
		return cli.Usagef("--expires: excludes --expires-in")
	case c.Expires != "":
		if age, err := time.ParseDuration(c.Expires); err == nil && age > 0 {
			wanted.Expires = time.Now().Add(age).UTC()
			break
		}
		at, err := time.Parse(time.RFC3339, c.Expires)
		if err != nil {
			return cli.Usagef("--expires: %q: must be a time in RFC 3339, such as 2027-01-31T00:00:00Z, or a duration", c.Expires)
		}
		wanted.Expires = at.UTC()
	case c.ExpiresIn < 0:
		return cli.Usagef("--expires-in: %v: must not be negative", c.ExpiresIn)
	case c.ExpiresIn > 0:
		wanted.Expires = time.Now().Add(c.ExpiresIn).UTC()
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	k, err := remote.CreateKey(a.Ctx, c.Tenant, wanted)
	if err != nil {
		return fmt.Errorf("create the key: %w", err)
	}
	a.NoteUnknown(remote, c.Tenant)
	if c.JSON {
		return cli.PrintJSON(a.Out, k)
	}
	if _, err := fmt.Fprintln(a.Out, k.Secret); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	fmt.Fprintf(a.Err, "The id of the key is %s. Store the key in a safe place: it cannot be read again.\n",
		k.ID)
	return nil
}

type keyListCmd struct {
	cli.AdminFlags
	Tenant string `arg:"" help:"Name of the tenant."`
	JSON   bool   `help:"Print JSON: {\"items\": […]}."`
}

func (keyListCmd) Help() string {
	return `Example:
  sluice key list acme

The list has id, creation, last use, expiry, rights and name of each key, oldest first, but not the
key itself. The last use is at most a minute behind. An expired key stays in the list for at least a
day.`
}

func (c *keyListCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list, err := remote.Keys(a.Ctx, c.Tenant)
	if err != nil {
		return fmt.Errorf("list the keys: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, list)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(a.Err, "The tenant has no keys.")
		return nil
	}
	rows := [][]string{{"ID", "CREATED", "LAST USED", "EXPIRES", "MAY", "NAME"}}
	for _, k := range list.Items {
		expires, used := "never", "never"
		if !k.LastUsed.IsZero() {
			used = cli.InstantText(k.LastUsed)
		}
		if !k.Expires.IsZero() {
			expires = cli.InstantText(k.Expires)
			if !time.Now().Before(k.Expires) {
				expires += " (expired)"
			}
		}
		rows = append(rows, []string{k.ID, cli.InstantText(k.Created), used, expires,
			cli.OneLine(rightsText(k)), cli.OrDash(cli.OneLine(k.Name))})
	}
	return cli.PrintTable(a.Out, rows)
}

// rightsText is what a key may do, in one cell of a table.
func rightsText(k wire.Key) string {
	parts := []string{strings.Join(k.Scopes, " ")}
	for _, list := range []struct {
		name  string
		items []string
	}{{"route", k.Routes}, {"type", k.Types}, {"network", k.Networks}} {
		for _, item := range list.items {
			parts = append(parts, list.name+"="+item)
		}
	}
	return strings.Join(parts, " ")
}

type tenantRevokeCmd struct {
	cli.AdminFlags
	Tenant  string `arg:"" help:"Name of the tenant, such as member:u-17."`
	Subject string `placeholder:"SUB" help:"Only tokens of this subject (sub) [all of the tenant]."`
	JSON    bool   `help:"Print the result as JSON."`
}

func (tenantRevokeCmd) Help() string {
	return `Example:
  sluice tenant revoke-tokens member:u-17

Tokens that were issued before now (iat) are refused everywhere about a second later, and tokens
without iat. Tokens that are issued later are accepted. API keys stay.`
}

func (c *tenantRevokeCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	r, err := remote.RevokeTokens(a.Ctx, c.Tenant, wire.Revocation{Subject: c.Subject})
	if err != nil {
		return fmt.Errorf("revoke the tokens: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, r)
	}
	rows := [][]string{{"tenant", cli.OneLine(r.Tenant)}}
	if r.Subject != "" {
		rows = append(rows, []string{"subject", cli.OneLine(r.Subject)})
	}
	return cli.PrintTable(a.Out, append(rows, []string{"not before", cli.InstantText(r.NotBefore)}))
}

type keyRevokeCmd struct {
	cli.AdminFlags
	Tenant string `arg:"" help:"Name of the tenant."`
	ID     string `arg:"" help:"Id of the key from key list; not the key itself."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (keyRevokeCmd) Help() string {
	return `Example:
  sluice key revoke acme ID

Within a second no process accepts the key. Jobs that were submitted with it stay.`
}

func (c *keyRevokeCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if err := remote.RevokeKey(a.Ctx, c.Tenant, c.ID); err != nil {
		return fmt.Errorf("revoke the key: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, map[string]string{"revoked": c.ID})
	}
	return cli.PrintTable(a.Out, [][]string{{"revoked", c.ID}})
}
