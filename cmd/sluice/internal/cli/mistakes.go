package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/shaper"
)

// mistakes map messages of kong about flags and arguments to messages with the flag, the value and
// the rule.
var mistakes = []struct {
	found *regexp.Regexp
	text  string // for fmt.Sprintf, with the groups
}{
	{regexp.MustCompile(`^(--[\w-]+): expected whole number value but got "(-\d*)" \(short flag\)`),
		"%s: %q: must be a whole number, such as 100"},
	{regexp.MustCompile(`^(--[\w-]+): expected duration but got "(\d+)": `),
		"%s: %q: must have a unit, such as %[2]ss"},
	{regexp.MustCompile(`^(--[\w-]+): expected duration but got (".*"): `),
		"%s: %s: must be a duration, such as 250ms, 10s or 1h30m"},
	{regexp.MustCompile(`^(--[\w-]+): parsing time (".*?") as `),
		"%s: %s: must be a time, such as 2026-01-02T15:04:05Z"},
	{regexp.MustCompile(`^(--[\w-]+): (?:expected .* value but got "EOL"|missing value)`),
		"%s: the value is missing"},
	{regexp.MustCompile(`^expected "<([\w-]+)>`), "the argument <%s> is missing"},
}

var (
	notOneOf      = regexp.MustCompile(`^(--[\w-]+|<[\w-]+>) must be one of (".*") but got "(.*)"$`)
	unknownShort  = regexp.MustCompile(`^unknown flag -(\w)`)
	inDays        = regexp.MustCompile(`^--[\w-]+: "(\d+) ?d(?:ays?)?": must be a duration`)
	extraArgument = regexp.MustCompile(`^unexpected argument (.+?)(?:, did you mean .*)?$`)
)

// mistakeOf returns the message of an error of the parser for these arguments.
func mistakeOf(err error, args []string) string {
	node := nodeOf(err)
	if found := extraArgument.FindStringSubmatch(err.Error()); found != nil && node != nil {
		if text := unknownCommand(node, found[1]); text != "" {
			return text
		}
		if strings.HasSuffix(found[1], ".yaml") || strings.HasSuffix(found[1], ".yml") {
			text := "unexpected argument " + found[1] + "; is sluice config check " + found[1]
			if slices.Contains(flagsOf(node), "config") {
				text += ", or --config " + found[1] + ","
			}
			return text + " meant?"
		}
		if slices.Contains(flagsOf(node), "tenant") {
			return fmt.Sprintf("unexpected argument %s; a tenant is named by --tenant", found[1])
		}
	}
	if strings.HasPrefix(err.Error(), "unknown flag --config") && node != nil && len(node.Positional) == 1 {
		return "unknown flag --config; the file stands alone: " + node.FullPath() + " FILE"
	}
	if strings.HasPrefix(err.Error(), "unknown flag --tenant") && node != nil && len(node.Positional) > 0 {
		return "unknown flag --tenant; the name stands alone: " + node.FullPath() + " NAME"
	}
	if found := unknownShort.FindStringSubmatch(err.Error()); found != nil && node != nil {
		for _, arg := range args {
			word, _, _ := strings.Cut(arg, "=")
			if name := strings.TrimPrefix(word, "-"); strings.HasPrefix(name, found[1]) && name != word && len(name) > 1 {
				if near := shaper.Nearest(name, flagsOf(node)); near != "" {
					return "unknown flag " + word + "; is --" + near + " meant?"
				}
			}
		}
	}
	if found := notOneOf.FindStringSubmatch(err.Error()); found != nil {
		rule := fmt.Sprintf("%s: %q: must be one of %s", found[1], found[3], found[2])
		if near := shaper.Nearest(found[3], strings.Split(strings.Trim(found[2], `"`), `","`)); near != "" {
			rule += fmt.Sprintf("; is %q meant?", near)
		}
		return rule
	}
	for _, m := range mistakes {
		if groups := m.found.FindStringSubmatch(err.Error()); groups != nil {
			values := make([]any, len(groups)-1)
			for i, g := range groups[1:] {
				values[i] = g
			}
			text := fmt.Sprintf(m.text, values...)
			if days := inDays.FindStringSubmatch(text); days != nil {
				if n, err := strconv.Atoi(days[1]); err == nil && n < 10_000 {
					text += fmt.Sprintf("; is %dh meant?", 24*n)
				}
			}
			if words := wordsFor(node, groups[1]); strings.HasSuffix(text, " is missing") && words != "" {
				text += "; it is one of " + words
			}
			return text
		}
	}
	return err.Error()
}

// wordsFor returns what a flag or an argument of the command may be, empty if it is no choice.
func wordsFor(node *kong.Node, name string) string {
	if node == nil {
		return ""
	}
	for _, p := range node.Positional {
		if p.Name == name {
			return strings.ReplaceAll(p.Enum, ",", ", ")
		}
	}
	for _, f := range node.Flags {
		if "--"+f.Name == name {
			return strings.ReplaceAll(f.Enum, ",", ", ")
		}
	}
	return ""
}

// nodeOf returns the command at which the parser stopped, nil if it is unknown.
func nodeOf(err error) *kong.Node {
	parse, is := errors.AsType[*kong.ParseError](err)
	if !is {
		return nil
	}
	if at := parse.Context.Selected(); at != nil {
		return at
	}
	return parse.Context.Model.Node
}

// synonyms are words that other commands or programs have for a command.
var synonyms = map[string]string{
	"show": "get", "ls": "list", "rm": "revoke", "delete": "revoke", "remove": "revoke",
	"start": "serve", "run": "serve", "status": "top", "stats": "top",
}

// fewCommands is how many commands below one are listed rather than those of others.
const fewCommands = 3

// unknownCommand is the message for a word where the command has subcommands: the nearest one,
// those of other commands with this name, or all. It is empty for a command without subcommands.
func unknownCommand(node *kong.Node, word string) string {
	root, names, elsewhere := node, []string{}, []string{}
	for root.Parent != nil {
		root = root.Parent
	}
	for _, child := range commandsOf(node) {
		names = append(names, child.Name)
	}
	for _, child := range commandsOf(root) {
		for _, below := range commandsOf(child) {
			if below.Name == word && child != node {
				elsewhere = append(elsewhere, "sluice "+child.Name+" "+word)
			}
		}
	}
	at := ""
	if node.Type == kong.CommandNode {
		at = node.Name + " "
	}
	near := shaper.Nearest(word, names)
	if same := synonyms[word]; slices.Contains(names, same) {
		near = same
	}
	switch {
	case len(names) == 0:
		return ""
	case near != "":
		return fmt.Sprintf("unknown command %s%s; is sluice %s%s meant?", at, word, at, near)
	case len(elsewhere) > 0 && (at == "" || len(names) > fewCommands):
		return fmt.Sprintf("unknown command %s%s; is %s meant?", at, word, strings.Join(elsewhere, " or "))
	}
	return fmt.Sprintf("unknown command %s%s; the commands are %s", at, word, strings.Join(names, ", "))
}

// commandsOf returns the visible commands directly below the node.
func commandsOf(node *kong.Node) (commands []*kong.Node) {
	for _, child := range node.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			commands = append(commands, child)
		}
	}
	return commands
}

func flagsOf(node *kong.Node) (names []string) {
	for _, group := range node.AllFlags(true) {
		for _, flag := range group {
			names = append(names, flag.Name)
		}
	}
	return names
}
