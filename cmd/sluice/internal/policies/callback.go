package policies

import (
	"fmt"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// CallbackCmd is the command callback with its subcommands.
type CallbackCmd struct {
	CreateSecret callbackCreateCmd    `cmd:"" name:"create-secret" help:"Create a secret that signs a tenant's callbacks, and print it once."`
	Secrets      callbackSecretsCmd   `cmd:"" help:"List the secrets of a tenant's callbacks, without the secrets themselves."`
	RevokeSecret callbackRevokeCmd    `cmd:"" name:"revoke-secret" help:"Revoke a secret of a tenant's callbacks."`
	Endpoints    callbackEndpointsCmd `cmd:"" help:"Read or replace the endpoints that a tenant's callbacks may go to."`
}

func (CallbackCmd) Help() string {
	return `Example:
  sluice callback create-secret acme
  sluice callback endpoints acme https://partner.example/hooks/

The commands ask the admin listener. A tenant without a secret of its own has callbacks.secrets of
the configuration.`
}

type callbackCreateCmd struct {
	cli.AdminFlags
	Tenant string `arg:"" help:"Name of the tenant."`
	Kind   string `enum:"hmac,ed25519" default:"hmac" placeholder:"KIND" help:"hmac: receivers verify with the secret. ed25519: they verify with the public key."`
	JSON   bool   `help:"Print the secret, its id and its creation as JSON."`
}

func (callbackCreateCmd) Help() string {
	return `Example:
  SECRET=$(sluice callback create-secret acme)
  sluice callback create-secret acme --kind ed25519 --json

What receivers verify with is the only line on standard output: the secret, or the public key. The
secret cannot be read again. From now on only the tenant's own secrets sign its callbacks. A tenant
may have two, and both sign, so that receivers can move from one to the next.

Next: give it to the receivers, then sluice callback revoke-secret TENANT ID of the old one`
}

func (c *callbackCreateCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	s, err := remote.CreateCallbackSecret(a.Ctx, c.Tenant, wire.CallbackSecretRequest{Kind: c.Kind})
	if err != nil {
		return fmt.Errorf("create the secret: %w", err)
	}
	a.NoteUnknown(remote, c.Tenant)
	if c.JSON {
		return cli.PrintJSON(a.Out, s)
	}
	shown, note := s.Secret, "Store the secret in a safe place: it cannot be read again."
	if s.PublicKey != "" {
		shown, note = s.PublicKey, "This is the public key. The private one does not leave the server."
	}
	if _, err := fmt.Fprintln(a.Out, shown); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	fmt.Fprintf(a.Err, "The id of the secret is %s. %s\n", s.ID, note)
	return nil
}

type callbackSecretsCmd struct {
	cli.AdminFlags
	Tenant string `arg:"" help:"Name of the tenant."`
	JSON   bool   `help:"Print JSON: {\"items\": […]}."`
}

func (callbackSecretsCmd) Help() string {
	return `Example:
  sluice callback secrets acme

The list has id, kind, creation and public key of each secret, newest first, but not the secret
itself.`
}

func (c *callbackSecretsCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list, err := remote.CallbackSecrets(a.Ctx, c.Tenant)
	if err != nil {
		return fmt.Errorf("list the secrets: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, list)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(a.Err, "The tenant has no secret of its own: callbacks.secrets of the configuration sign its callbacks.")
		return nil
	}
	rows := [][]string{{"ID", "KIND", "CREATED", "BY", "PUBLIC KEY"}}
	for _, s := range list.Items {
		rows = append(rows, []string{s.ID, s.Kind, cli.InstantText(s.Created), cli.OneLine(s.By), cli.OrDash(s.PublicKey)})
	}
	return cli.PrintTable(a.Out, rows)
}

type callbackRevokeCmd struct {
	cli.AdminFlags
	Tenant string `arg:"" help:"Name of the tenant."`
	ID     string `arg:"" help:"Id of the secret from callback secrets; not the secret itself."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (callbackRevokeCmd) Help() string {
	return `Example:
  sluice callback revoke-secret acme ID

The secret signs no attempt from now on. Without any secret of the tenant, callbacks.secrets of the
configuration sign its callbacks.`
}

func (c *callbackRevokeCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if err := remote.RevokeCallbackSecret(a.Ctx, c.Tenant, c.ID); err != nil {
		return fmt.Errorf("revoke the secret: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, map[string]string{"revoked": c.ID})
	}
	return cli.PrintTable(a.Out, [][]string{{"revoked", c.ID}})
}

type callbackEndpointsCmd struct {
	cli.AdminFlags
	Tenant   string   `arg:"" help:"Name of the tenant."`
	Endpoint []string `arg:"" optional:"" help:"Prefixes of URLs that its callbacks may go to. They replace the former ones."`
	None     bool     `help:"Remove all endpoints."`
	JSON     bool     `help:"Print JSON: {\"endpoints\": […]}."`
}

func (callbackEndpointsCmd) Help() string {
	return `Example:
  sluice callback endpoints acme
  sluice callback endpoints acme https://partner.example/hooks/ http://10.0.0.7:8080/done
  sluice callback endpoints acme --none

Without endpoints the command prints those in force. To replace them needs the role admin. A prefix is
a scheme, a host, perhaps a port, and a path that must match up to the end of one of its segments.`
}

func (c *callbackEndpointsCmd) Run(a *cli.App) error {
	if c.None && len(c.Endpoint) > 0 {
		return cli.Usagef("--none: excludes endpoints")
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	var e wire.CallbackEndpoints
	if c.None || len(c.Endpoint) > 0 {
		e, err = remote.PutCallbackEndpoints(a.Ctx, c.Tenant, wire.CallbackEndpoints{Endpoints: append([]string{}, c.Endpoint...)})
	} else {
		e, err = remote.CallbackEndpoints(a.Ctx, c.Tenant)
	}
	if err != nil {
		return fmt.Errorf("endpoints of callbacks: %w", err)
	}
	a.NoteUnknown(remote, c.Tenant)
	if c.JSON {
		return cli.PrintJSON(a.Out, e)
	}
	if len(e.Endpoints) == 0 {
		fmt.Fprintln(a.Err, "The tenant has no endpoints of its own.")
		return nil
	}
	for _, endpoint := range e.Endpoints {
		if _, err := fmt.Fprintln(a.Out, cli.OneLine(endpoint)); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}
