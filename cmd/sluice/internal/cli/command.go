package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/shaper"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2 // bad usage or bad configuration
)

// exited carries the exit code out of kong, which exits while it parses, after printing the help.
type exited int

// Run parses args with the grammar, a pointer to a struct for kong, and runs their command. It
// prints failures and returns the exit code.
func Run(ctx context.Context, grammar any, args []string, std Stdio, environ []string) (code int) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case exited:
			code = int(e)
		default:
			panic(e)
		}
	}()
	parser, err := NewParser(grammar, std)
	if err != nil {
		fmt.Fprintln(std.Err, "sluice:", err)
		return ExitFailed
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help":
		args = append(slices.Clone(args[1:]), "--help")
	}
	parsed, err := parser.Parse(args)
	if err == nil {
		err = filled(parsed)
	}
	if err != nil {
		fmt.Fprintf(std.Err, "sluice: %s\nTry: sluice%s --help\n", mistakeOf(err, args), commandOf(parser, args))
		return ExitUsage
	}
	err = parsed.Run(&App{Ctx: ctx, Stdio: std, Environ: environ}, parser)
	code = report(std.Err, err)
	var usage UsageError
	if errors.As(err, &usage) {
		fmt.Fprintf(std.Err, "Try: sluice%s --help\n", commandOf(parser, args))
	} else if next := hint(err, flagsGiven(parsed)); next != "" {
		fmt.Fprintln(std.Err, next)
	}
	return code
}

// filled refuses an empty argument, and an empty value or 0 of a flag with the tag filled, such as
// that of an unset variable. It would count as not given, and select everything or another tenant.
func filled(parsed *kong.Context) error {
	for _, at := range parsed.Path {
		if p := at.Positional; p != nil && p.Target.Kind() == reflect.String && p.Target.Len() == 0 {
			return fmt.Errorf("%s must not be empty: %s", p.Summary(), p.Help)
		}
		f := at.Flag
		if f == nil || !f.Tag.Has("filled") || !f.Target.IsZero() && (f.Target.CanInt() || f.Target.Len() > 0) {
			continue
		}
		if f.Target.CanInt() {
			return fmt.Errorf("--%s: 0: must be at least 1", f.Name)
		}
		return fmt.Errorf("--%s must not be empty: give a value or omit the flag", f.Name)
	}
	return nil
}

// flagsGiven returns the values of the flags that the parsed command has, by name.
func flagsGiven(parsed *kong.Context) map[string]string {
	values := map[string]string{}
	for _, flag := range parsed.Flags() {
		values[flag.Name] = fmt.Sprint(parsed.FlagValue(flag))
	}
	return values
}

// report prints the failure of a command and returns the exit code.
func report(w io.Writer, err error) int {
	var problems shaper.Problems
	var usage UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrReported):
		return ExitFailed
	case errors.As(err, &problems):
		fmt.Fprintf(w, "sluice: %s with the configuration:\n", Plural(len(problems), "problem", "problems"))
		for _, p := range problems {
			fmt.Fprintf(w, "  %s\n", p)
		}
		return ExitUsage
	case errors.As(err, &usage):
		fmt.Fprintf(w, "sluice: %s\n", usage)
		return ExitUsage
	default:
		fmt.Fprintf(w, "sluice: %s\n", EndedEarly(err))
		return ExitFailed
	}
}

// NewParser returns the parser of a grammar.
func NewParser(grammar any, std Stdio) (*kong.Kong, error) {
	parser, err := kong.New(grammar,
		kong.Name("sluice"),
		kong.Description("Sluice is a queue-backed leaky-bucket request shaper. Jobs arrive at any time "+
			"and wait in a bounded "+
			"queue; each tenant's jobs leave at that tenant's rate.\n\nStart with: sluice dev\n\n"+
			"Exit codes: 0 done, 1 failed, 2 bad usage or bad configuration."),
		kong.Vars{"api": DefaultAPI, "admin": DefaultAdmin},
		kong.Writers(std.Out, std.Err),
		kong.KindMapper(reflect.Int, kong.MapperFunc(readWhole)),
		kong.KindMapper(reflect.Int64, kong.MapperFunc(readWhole)),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100, NoExpandSubcommands: true}),
		kong.ExplicitGroups([]kong.Group{{Key: "settings",
			Title: "Settings (each with its key in the file, its environment variable and its default):"}}),
	)
	if err != nil {
		return nil, fmt.Errorf("command line: %w", err)
	}
	parser.Model.HelpFlag.Help = "Show this help."
	return parser, nil
}

// readWhole reads the integer of a flag like any other setting: it is no literal of Go, where 010
// is 8.
func readWhole(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("whole number")
	if err != nil {
		return err
	}
	text := token.String()
	n, ok := numbers.ParseWhole(text)
	if like := numbers.WholeLike(text); !ok && like != "" {
		return fmt.Errorf("%q: must be a whole number; is %s meant?", text, like)
	}
	if !ok || target.OverflowInt(n) {
		return fmt.Errorf("%q: must be a whole number, such as 100", text)
	}
	target.SetInt(n)
	return nil
}

// commandOf returns the command at the beginning of args, for the hint after a mistake.
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
