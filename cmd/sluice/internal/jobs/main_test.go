package jobs

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs one of the commands of this package; it returns the exit code.
func run(ctx context.Context, args []string, std cli.Stdio, environ []string) int {
	var grammar struct {
		Submit SubmitCmd `cmd:""`
		Job    Cmd       `cmd:""`
	}
	return cli.Run(ctx, &grammar, args, std, environ)
}
