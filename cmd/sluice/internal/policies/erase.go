package policies

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

type tenantEraseCmd struct {
	cli.AdminFlags
	Name string        `arg:"" help:"Name of the tenant."`
	Yes  bool          `short:"y" help:"Do not ask for confirmation."`
	Wait time.Duration `default:"2m" help:"How long to wait for deliveries under way to end."`
	JSON bool          `help:"Print the counts as JSON."`
}

func (tenantEraseCmd) Help() string {
	return `Example:
  sluice tenant erase acme --yes

The command removes jobs in all states, answers, callbacks with their secrets and endpoints,
idempotency keys, API keys, revocations of tokens, history, settings of the API, and tasks in asynq, and prints how many of each. It first revokes the API keys of
the tenant, and drains and pauses it. Deliveries under way end by themselves; the command waits for them.
Settings in the configuration file stay: remove them there. A client with a JSON Web Token may submit
again afterwards, also with one that was revoked: end its tokens at the issuer first.

Exit codes: 0 nothing is left, 1 something is left, or you answered no: run it again, 2 bad usage.

Next: backups of Redis still have the tenant.`
}

func (c *tenantEraseCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if !c.Yes {
		if !cli.Terminal(a.In) || !cli.Terminal(a.Err) {
			return cli.Usagef("erase deletes a tenant: --yes is required without a terminal")
		}
		if err := a.Confirm(fmt.Sprintf("Erase all that is stored of the tenant %s? It cannot be restored. [y/N] ", c.Name)); err != nil {
			return err
		}
	}
	sum, cursor, end := wire.Erased{}, "", time.Now().Add(c.Wait)
	for {
		e, err := remote.EraseTenant(a.Ctx, c.Name, cursor)
		if err != nil {
			return fmt.Errorf("erase the tenant, after %d jobs: %w", sum.Jobs, err)
		}
		for to, n := range map[*int64]int64{
			&sum.Jobs: e.Jobs, &sum.Answers: e.Answers, &sum.Callbacks: e.Callbacks, &sum.Tasks: e.Tasks, &sum.Keys: e.Keys,
			&sum.IdempotencyKeys: e.IdempotencyKeys, &sum.CallbackSecrets: e.CallbackSecrets,
			&sum.Revocations: e.Revocations, &sum.Settings: e.Settings, &sum.History: e.History, &sum.Flows: e.Flows,
		} {
			*to += n
		}
		sum.Running, sum.More = e.Running, e.More
		if cursor = e.Cursor; !e.More || time.Now().After(end) {
			break
		}
		if e.Running > 0 && cursor == "" {
			select {
			case <-a.Ctx.Done():
				return a.Ctx.Err()
			case <-time.After(time.Second):
			}
		}
	}
	if err := cli.Print(a.Out, &sum, c.JSON, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "Erased %s: %d jobs, %d answers, %d callbacks, %d tasks, %d idempotency keys, %d API keys, "+
			"%d callback secrets, %d revocations, %d settings, %d history entries, %d routes.\n", c.Name, sum.Jobs, sum.Answers, sum.Callbacks, sum.Tasks,
			sum.IdempotencyKeys, sum.Keys, sum.CallbackSecrets, sum.Revocations, sum.Settings, sum.History, sum.Flows)
		return err
	}); err != nil {
		return err
	}
	if sum.More {
		return errors.New("something is left: deliveries under way have not ended; run the command again")
	}
	return nil
}
