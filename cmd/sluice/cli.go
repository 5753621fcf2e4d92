package main

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/internal/audit"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/jobs"
	"github.com/7509e464/sluice/cmd/sluice/internal/policies"
	"github.com/7509e464/sluice/cmd/sluice/internal/simulate"
	"github.com/7509e464/sluice/cmd/sluice/internal/top"
)

// commands is the command line.
type commands struct {
	Serve       serveCmd              `cmd:"" help:"Run Sluice: admit jobs and deliver them at the tenants' rates."`
	Dev         devCmd                `cmd:"" help:"Try Sluice: one process, jobs in memory, no configuration."`
	Init        initCmd               `cmd:"" help:"Write a configuration to begin with."`
	Check       checkCmd              `cmd:"" help:"Check the store for damage and repair it."`
	Config      configCmd             `cmd:"" help:"Check a configuration without running it."`
	Upgrade     upgradeCmd            `cmd:"" help:"Check whether this version can take over."`
	Redis       redisCmd              `cmd:"" help:"Have a replica of Redis take over."`
	Store       storeCmd              `cmd:"" help:"Rotate the keys that encrypt the store."`
	Codec       codecCmd              `cmd:"" help:"Make keys that encrypt the store."`
	Submit      jobs.SubmitCmd        `cmd:"" help:"Submit one job, or one for each line of a file."`
	Burst       jobs.BurstCmd         `cmd:"" help:"Submit many jobs at once and watch them leave at the tenant's rate."`
	Job         jobs.Cmd              `cmd:"" help:"Read, list, wait for, cancel or replay jobs."`
	Tenant      policies.TenantCmd    `cmd:"" help:"Read and change the settings of tenants."`
	Route       policies.RouteCmd     `cmd:"" help:"Read how the deliveries of routes fail."`
	Pool        policies.PoolCmd      `cmd:"" help:"Read and change pools: rates that tenants share."`
	Key         policies.KeyCmd       `cmd:"" help:"Create, list and revoke the API keys of a tenant."`
	Callback    policies.CallbackCmd  `cmd:"" help:"Manage the secrets and endpoints of a tenant's callbacks."`
	Operator    policies.OperatorCmd  `cmd:"" help:"Create, list and revoke operators."`
	Audit       audit.Cmd             `cmd:"" help:"Read who did what on the admin listener, and verify it."`
	Record      simulate.RecordCmd    `cmd:"" help:"Record the arrivals of a tenant, for simulate and recommend."`
	Top         top.Cmd               `cmd:"" help:"Show live figures, and change the rates of tenants."`
	Simulate    simulate.SimulateCmd  `cmd:"" help:"Replay arrivals through the shaper or a limiter, without a server."`
	Recommend   simulate.RecommendCmd `cmd:"" help:"Find the smallest rate and capacity that reach your goals."`
	Healthcheck healthcheckCmd        `cmd:"" help:"Check whether a running process is ready."`
	Echo        echoCmd               `cmd:"" help:"Run an upstream that echoes every delivery."`
	Completion  completionCmd         `cmd:"" help:"Print a completion script for your shell."`
	Complete    completeCmd           `cmd:"" hidden:"" help:"Print completions."`
	Version     versionCmd            `cmd:"" help:"Print the version."`
}

// newCommands returns the command line. serve, check, config check, upgrade check, redis failover
// and store rotate-keys have a flag for each setting of the program, tenant set and pool set for
// each of a policy.
func newCommands() *commands {
	all := &commands{Tenant: policies.NewTenant(), Pool: policies.NewPool()}
	all.Serve.Plugins = kong.Plugins{settingFlags()}
	all.Config.Check.Plugins = kong.Plugins{settingFlags()}
	all.Upgrade.Check.Plugins = kong.Plugins{settingFlags()}
	all.Check.Plugins = kong.Plugins{settingFlags()}
	all.Redis.Failover.Plugins = kong.Plugins{settingFlags()}
	all.Store.RotateKeys.Plugins = kong.Plugins{settingFlags()}
	return all
}

// run is the whole program but for the process around it; it returns the exit code.
func Run(ctx context.Context, args []string, std cli.Stdio, environ []string) (code int) {
	return cli.Run(ctx, newCommands(), args, std, environ)
}
