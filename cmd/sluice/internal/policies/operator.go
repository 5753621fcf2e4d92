package policies

import (
	"fmt"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// OperatorCmd is the command operator with its subcommands.
type OperatorCmd struct {
	Create operatorCreateCmd `cmd:"" help:"Create an operator and print the token once."`
	List   operatorListCmd   `cmd:"" help:"List the operators, without the tokens."`
	Revoke operatorRevokeCmd `cmd:"" help:"Revoke the token of an operator."`
}

func (OperatorCmd) Help() string {
	return `Example:
  sluice operator create vera --role viewer
  sluice operator list

The commands ask the admin listener, as an operator with the role admin. Operators send their token
as Authorization: Bearer; the other commands of sluice read it from SLUICE_ADMIN_TOKEN.`
}

type operatorCreateCmd struct {
	cli.AdminFlags
	Name      string        `arg:"" help:"Name of the operator; unique."`
	Role      string        `required:"" enum:"viewer,operator,admin" placeholder:"ROLE" help:"viewer: reads all but what clients wrote. operator: also changes tenants and pools, and reads payloads. admin: also manages operators."`
	ExpiresIn time.Duration `placeholder:"DURATION" help:"Lifetime, such as 720h [no end]."`
	Network   []string      `placeholder:"NETWORK" help:"Address or prefix from which the token is accepted; may be repeated [any]."`
	JSON      bool          `help:"Print the token, its id and its times as JSON."`
}

func (operatorCreateCmd) Help() string {
	return `Example:
  sluice operator create vera --role viewer
  sluice operator create olaf --role operator --expires-in 720h --network 10.1.0.0/16 --json

The token is the only line on standard output. It cannot be read again, because only a digest is
stored.

Next: SLUICE_ADMIN_TOKEN=TOKEN sluice tenant list`
}

func (c *operatorCreateCmd) Run(a *cli.App) error {
	wanted := wire.OperatorRequest{Name: c.Name, Role: c.Role, Networks: c.Network}
	switch {
	case c.ExpiresIn < 0:
		return cli.Usagef("--expires-in: %v: must not be negative", c.ExpiresIn)
	case c.ExpiresIn > 0:
		wanted.Expires = time.Now().Add(c.ExpiresIn).UTC()
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	o, err := remote.CreateOperator(a.Ctx, wanted)
	if err != nil {
		return fmt.Errorf("create the operator: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, o)
	}
	if _, err := fmt.Fprintln(a.Out, o.Token); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	fmt.Fprintf(a.Err, "The id of the operator is %s. Store the token in a safe place: it cannot be read again.\n", o.ID)
	return nil
}

type operatorListCmd struct {
	cli.AdminFlags
	JSON bool `help:"Print JSON: {\"items\": […]}."`
}

func (operatorListCmd) Help() string {
	return `Example:
  sluice operator list

The list has id, role, creation, expiry, last use, networks and name of each operator, oldest first.
An expired operator stays in the list for at least a day.`
}

func (c *operatorListCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list, err := remote.Operators(a.Ctx)
	if err != nil {
		return fmt.Errorf("list the operators: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, list)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(a.Err, "There are no operators. Create one with sluice operator create NAME --role ROLE.")
		return nil
	}
	instant := func(at time.Time) string {
		if at.IsZero() {
			return "never"
		}
		return cli.InstantText(at)
	}
	rows := [][]string{{"ID", "ROLE", "CREATED", "BY", "EXPIRES", "LAST USED", "NETWORKS", "NAME"}}
	for _, o := range list.Items {
		expires := instant(o.Expires)
		if !o.Expires.IsZero() && !time.Now().Before(o.Expires) {
			expires += " (expired)"
		}
		networks := strings.Join(o.Networks, " ")
		if networks == "" {
			networks = "any"
		}
		rows = append(rows, []string{o.ID, o.Role, cli.InstantText(o.Created), cli.OneLine(o.By), expires, instant(o.Used),
			networks, cli.OneLine(o.Name)})
	}
	return cli.PrintTable(a.Out, rows)
}

type operatorRevokeCmd struct {
	cli.AdminFlags
	ID   string `arg:"" help:"Id of the operator from operator list; not the token."`
	JSON bool   `help:"Print the result as JSON."`
}

func (operatorRevokeCmd) Help() string {
	return `Example:
  sluice operator revoke ID

Within a second no process accepts the token. Event streams that were opened with it end within two.`
}

func (c *operatorRevokeCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if err := remote.RevokeOperator(a.Ctx, c.ID); err != nil {
		return fmt.Errorf("revoke the operator: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, map[string]string{"revoked": c.ID})
	}
	return cli.PrintTable(a.Out, [][]string{{"revoked", c.ID}})
}
