package main

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/internal/arrivals"
	"github.com/7509e464/sluice/cmd/sluice/internal/command"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/cmd/sluice/internal/jobs"
	"github.com/7509e464/sluice/cmd/sluice/internal/pools"
	"github.com/7509e464/sluice/cmd/sluice/internal/routes"
	"github.com/7509e464/sluice/cmd/sluice/internal/tenants"
	"github.com/7509e464/sluice/cmd/sluice/internal/top"
)

// commands is the command line.
type commands struct {
	Serve       serveCmd              `cmd:"" help:"Run Sluice: admit jobs and deliver them at the tenants' rates."`
	Dev         devCmd                `cmd:"" help:"Try Sluice: one process, jobs in memory, no configuration."`
	Check       checkCmd              `cmd:"" help:"Check the store for damage and repair it."`
	Config      configCmd             `cmd:"" help:"Check a configuration without running it."`
	Redis       redisCmd              `cmd:"" help:"Have a replica of Redis take over."`
	Submit      jobs.SubmitCmd        `cmd:"" help:"Submit one job, or one for each line of a file."`
	Burst       jobs.BurstCmd         `cmd:"" help:"Submit many jobs at once and watch them leave at the tenant's rate."`
	Job         jobs.Cmd              `cmd:"" help:"Read, list, wait for, cancel or replay jobs."`
	Tenant      tenants.Cmd           `cmd:"" help:"Read and change the settings of tenants."`
	Route       routes.Cmd            `cmd:"" help:"Read how the deliveries of routes fail."`
	Pool        pools.Cmd             `cmd:"" help:"Read and change pools: rates that tenants share."`
	Key         tenants.KeyCmd        `cmd:"" help:"Create, list and revoke the API keys of a tenant."`
	Record      arrivals.RecordCmd    `cmd:"" help:"Record the arrivals of a tenant, for simulate and recommend."`
	Top         top.Cmd               `cmd:"" help:"Show live figures, and change the rates of tenants."`
	Simulate    arrivals.SimulateCmd  `cmd:"" help:"Replay arrivals through the shaper or a limiter, without a server."`
	Recommend   arrivals.RecommendCmd `cmd:"" help:"Find the smallest rate and capacity that reach your goals."`
	Healthcheck healthcheckCmd        `cmd:"" help:"Check whether a running process is ready."`
	Echo        echoCmd               `cmd:"" help:"Run an upstream that echoes every delivery."`
	Completion  completionCmd         `cmd:"" help:"Print a completion script for your shell."`
	Complete    completeCmd           `cmd:"" hidden:"" help:"Print completions."`
	Version     versionCmd            `cmd:"" help:"Print the version."`
}

// newCommands returns the command line. serve, check, config check and redis failover have a flag
// for each setting of the program, tenant set and pool set for each of a policy.
func newCommands() *commands {
	cli := &commands{Tenant: tenants.New(), Pool: pools.New()}
	cli.Serve.Plugins = kong.Plugins{settingFlags()}
	cli.Config.Check.Plugins = kong.Plugins{settingFlags()}
	cli.Check.Plugins = kong.Plugins{settingFlags()}
	cli.Redis.Failover.Plugins = kong.Plugins{settingFlags()}
	return cli
}

// run is the whole program but for the process around it; it returns the exit code.
func Run(ctx context.Context, args []string, std console.Stdio, environ []string) (code int) {
	return command.Run(ctx, newCommands(), args, std, environ)
}
