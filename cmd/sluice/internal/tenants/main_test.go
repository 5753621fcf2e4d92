package tenants

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/cmd/sluice/internal/command"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs one of the commands of this package; it returns the exit code.
func run(ctx context.Context, args []string, std console.Stdio, environ []string) int {
	grammar := struct {
		Tenant Cmd `cmd:""`
	}{New()}
	return command.Run(ctx, &grammar, args, std, environ)
}
