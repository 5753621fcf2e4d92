package main

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/internal/arrivals"
	"github.com/7509e464/sluice/cmd/sluice/internal/command"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/cmd/sluice/internal/jobs"
	"github.com/7509e464/sluice/cmd/sluice/internal/tenants"
	"github.com/7509e464/sluice/cmd/sluice/internal/top"
)

// commands is the command line.
type commands struct {
	Serve       serveCmd              `cmd:"" help:"Run Sluice: admit jobs, shape them, deliver them."`
	Dev         devCmd                `cmd:"" help:"Try Sluice out: everything in one process, without a configuration."`
	Check       checkCmd              `cmd:"" help:"Compare what is counted in the store with what is there, and repair it."`
	Config      configCmd             `cmd:"" help:"Check a configuration."`
	Submit      jobs.SubmitCmd        `cmd:"" help:"Submit one job, or the lines of a file."`
	Burst       jobs.BurstCmd         `cmd:"" help:"Submit many jobs at once and watch them leave at the tenant's rate."`
	Job         jobs.Cmd              `cmd:"" help:"Read, list, await, cancel or replay jobs."`
	Tenant      tenants.Cmd           `cmd:"" help:"Read and change the settings of a tenant."`
	Key         tenants.KeyCmd        `cmd:"" help:"Make, list and revoke the API keys of a tenant."`
	Record      arrivals.RecordCmd    `cmd:"" help:"Write down a tenant's arrivals, for simulate and recommend."`
	Top         top.Cmd               `cmd:"" help:"Show Sluice live, and change the rates of tenants."`
	Simulate    arrivals.SimulateCmd  `cmd:"" help:"Replay arrivals through the shaper or a limiter, without a server."`
	Recommend   arrivals.RecommendCmd `cmd:"" help:"Find the smallest rate and capacity for arrivals and goals."`
	Healthcheck healthcheckCmd        `cmd:"" help:"Ask a running process whether it is ready."`
	Echo        echoCmd               `cmd:"" help:"Run an upstream that answers every delivery with what it got."`
	Completion  completionCmd         `cmd:"" help:"Print a script for the completion of a shell."`
	Complete    completeCmd           `cmd:"" hidden:"" help:"Print what may follow on the command line."`
	Version     versionCmd            `cmd:"" help:"Print the version."`
}

// newCommands returns the command line, with a flag of serve, check and config check for each
// setting.
func newCommands() *commands {
	cli := &commands{}
	cli.Serve.Plugins = kong.Plugins{settingFlags()}
	cli.Config.Check.Plugins = kong.Plugins{settingFlags()}
	cli.Check.Plugins = kong.Plugins{settingFlags()}
	return cli
}

// run is the whole program but for the process around it; it returns the exit code.
func Run(ctx context.Context, args []string, std console.Stdio, environ []string) (code int) {
	return command.Run(ctx, newCommands(), args, std, environ)
}
