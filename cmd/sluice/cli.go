package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/shaper"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // bad usage or bad configuration
)

// stdio is where a command reads and prints.
type stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// commands is the command line.
type commands struct {
	Serve       serveCmd       `cmd:"" help:"Run Sluice: admit jobs, shape them, deliver them."`
	Dev         devCmd         `cmd:"" help:"Try Sluice out: everything in one process, without a configuration."`
	Check       checkCmd       `cmd:"" help:"Compare what is counted in the store with what is there, and repair it."`
	Config      configCmd      `cmd:"" help:"Check a configuration."`
	Submit      submitCmd      `cmd:"" help:"Submit one job, or the lines of a file."`
	Burst       burstCmd       `cmd:"" help:"Submit many jobs at once and watch them leave at the tenant's rate."`
	Job         jobCmd         `cmd:"" help:"Read, list, await, cancel or replay jobs."`
	Tenant      tenantCmd      `cmd:"" help:"Read and change the settings of a tenant."`
	Key         keyCmd         `cmd:"" help:"Make, list and revoke the API keys of a tenant."`
	Record      recordCmd      `cmd:"" help:"Write down a tenant's arrivals, for simulate and recommend."`
	Top         topCmd         `cmd:"" help:"Show Sluice live, and change the rates of tenants."`
	Simulate    simulateCmd    `cmd:"" help:"Replay arrivals through the shaper or a limiter, without a server."`
	Recommend   recommendCmd   `cmd:"" help:"Find the smallest rate and capacity for arrivals and goals."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask a running process whether it is ready."`
	Echo        echoCmd        `cmd:"" help:"Run an upstream that answers every delivery with what it got."`
	Completion  completionCmd  `cmd:"" help:"Print a script for the completion of a shell."`
	Complete    completeCmd    `cmd:"" hidden:"" help:"Print what may follow on the command line."`
	Version     versionCmd     `cmd:"" help:"Print the version."`
}

// usageError is a mistake on the command line that kong could not see.
type usageError string

func (e usageError) Error() string { return string(e) }

func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// errReported is a failure that was printed already: it only decides the exit code.
var errReported = errors.New("reported")

// exited carries the exit code out of kong, which asks to exit from the midst of parsing, after it
// printed the help.
type exited int

// run is the whole program but for the process around it; it returns the exit code.
func run(ctx context.Context, args []string, std stdio, environ []string) (code int) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case exited:
			code = int(e)
		default:
			panic(e)
		}
	}()
	parser, err := newParser(std)
	if err != nil {
		fmt.Fprintln(std.Err, "sluice:", err)
		return exitFailed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err == nil {
		err = filled(parsed)
	}
	if err != nil {
		fmt.Fprintf(std.Err, "sluice: %s\nTry: sluice%s --help\n", mistakeOf(err), commandOf(parser, args))
		return exitUsage
	}
	err = parsed.Run(&app{ctx: ctx, stdio: std, environ: environ}, parser)
	code = report(std.Err, err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(std.Err, "Try: sluice%s --help\n", commandOf(parser, args))
	} else if next := hint(err, func(flag string) bool { return hasFlag(parsed, flag) }); next != "" {
		fmt.Fprintln(std.Err, next)
	}
	return code
}

// filled refuses a flag with the tag filled that was given empty, as by a variable that is not set:
// it would count as not given, and what it was to choose would be everything, or another tenant's.
func filled(parsed *kong.Context) error {
	for _, at := range parsed.Path {
		if f := at.Flag; f != nil && f.Tag.Has("filled") && f.Target.Len() == 0 {
			return fmt.Errorf("--%s must not be empty: give a value or leave it out", f.Name)
		}
	}
	return nil
}

// hasFlag reports whether the command that was given has this flag.
func hasFlag(parsed *kong.Context, name string) bool {
	for _, flag := range parsed.Flags() {
		if flag.Name == name {
			return true
		}
	}
	return false
}

// report prints why a command failed and gives the exit code.
func report(w io.Writer, err error) int {
	var problems shaper.Problems
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitFailed
	case errors.As(err, &problems):
		noun := "problems"
		if len(problems) == 1 {
			noun = "problem"
		}
		fmt.Fprintf(w, "sluice: %d %s with the configuration:\n", len(problems), noun)
		for _, p := range problems {
			fmt.Fprintf(w, "  %s\n", p)
		}
		return exitUsage
	case errors.As(err, &usage):
		fmt.Fprintf(w, "sluice: %s\n", usage)
		return exitUsage
	default:
		fmt.Fprintf(w, "sluice: %v\n", err)
		return exitFailed
	}
}

// newParser builds the command line, with one flag of serve per setting.
func newParser(std stdio) (*kong.Kong, error) {
	cli := &commands{}
	cli.Serve.Plugins = kong.Plugins{settingFlags()}
	cli.Config.Check.Plugins = kong.Plugins{settingFlags()}
	cli.Check.Plugins = kong.Plugins{settingFlags()}
	parser, err := kong.New(cli,
		kong.Name("sluice"),
		kong.Description("Sluice is a queue-backed leaky-bucket request shaper. Jobs arrive when they like and wait in a bounded "+
			"queue; each tenant's jobs leave at that tenant's rate.\n\nStart with: sluice dev\n\n"+
			"Exit codes: 0 done, 1 failed, 2 bad usage or bad configuration."),
		kong.Vars{"api": defaultAPI, "admin": defaultAdmin},
		kong.Writers(std.Out, std.Err),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100, NoExpandSubcommands: true}),
		kong.ExplicitGroups([]kong.Group{{Key: "settings", Title: "Settings (each with its key in the file, its environment variable and its default):"}}),
	)
	if err != nil {
		return nil, fmt.Errorf("command line: %w", err)
	}
	return parser, nil
}

// commandOf is the command that args begin with, for the hint after a mistake.
func commandOf(parser *kong.Kong, args []string) string {
	path := ""
	node := parser.Model.Node
	for _, arg := range args {
		found := false
		for _, child := range node.Children {
			if child.Name == arg {
				node, found = child, true
				break
			}
		}
		if !found || strings.HasPrefix(arg, "-") {
			break
		}
		path += " " + arg
	}
	return path
}

// app is what every command gets.
type app struct {
	stdio
	ctx     context.Context // ends when the process is asked to end
	environ []string
}

// env reads a variable of the process, or the fallback.
func (a *app) env(name, fallback string) string {
	for _, entry := range a.environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok && value != "" {
			return value
		}
	}
	return fallback
}
