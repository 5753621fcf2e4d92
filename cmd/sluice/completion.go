package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `Example:
  source <(sluice completion bash)                                 # or in ~/.bashrc
  sluice completion zsh > "${fpath[1]}/_sluice"
  sluice completion fish > ~/.config/fish/completions/sluice.fish

The script completes commands, flags and their values. It calls sluice for the candidates, so it
needs no update after an upgrade.`
}

// completionScripts call sluice complete, which prints one candidate a line, a tab and its meaning.
var completionScripts = map[string]string{
	"bash": `_sluice() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    COMPREPLY+=("${line%%$'\t'*}")
  done < <(sluice complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o bashdefault -o default -F _sluice sluice
`,
	"zsh": `#compdef sluice
_sluice() {
  local -a found
  found=("${(@f)$(sluice complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then
    found=("${(@)found//$'\t'/:}")
    _describe sluice found
  else
    [[ "$PREFIX" == --*=* ]] && compset -P '*='
    _files
  fi
}
if [[ "${funcstack[1]}" == _sluice ]]; then
  _sluice "$@"
else
  compdef _sluice sluice
fi
`,
	// Without a candidate the condition fails, and fish completes file names.
	"fish": `function __sluice_finds
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -g __sluice_found (sluice complete -- $words[2..-1] "$current" 2>/dev/null)
  test -n "$__sluice_found[1]"
end
complete -c sluice -n __sluice_finds -f -a '(printf "%s\n" $__sluice_found)'
`,
}

func (c *completionCmd) Run(a *cli.App) error {
	_, err := fmt.Fprint(a.Out, completionScripts[c.Shell])
	return err
}

// completeCmd answers the scripts.
type completeCmd struct {
	Words []string `arg:"" optional:"" help:"The words after sluice; the last is the one to complete."`
}

func (completeCmd) Help() string {
	return `Example:
  sluice complete -- job list --st

The scripts of sluice completion call it.`
}

func (c *completeCmd) Run(a *cli.App, parser *kong.Kong) error {
	for _, found := range candidates(parser.Model.Node, c.Words) {
		if _, err := fmt.Fprintln(a.Out, found); err != nil {
			return err
		}
	}
	return nil
}

// candidates returns the commands, flags or values that complete the last of the words, each with a
// tab and its meaning.
func candidates(root *kong.Node, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	words, current := words[:len(words)-1], words[len(words)-1]
	node := root
	var waiting *kong.Flag // its value comes next
	positional := 0
	for _, word := range words {
		switch {
		case word == "=": // bash cuts --flag=value in three
		case waiting != nil:
			waiting = nil
		case word == "--":
			return nil
		case strings.HasPrefix(word, "-"):
			if waiting = flagOf(node, word); waiting != nil && (waiting.IsBool() || waiting.IsCounter()) {
				waiting = nil
			}
		default:
			if child := childOf(node, word); child != nil {
				node, positional = child, 0
			} else {
				positional++
			}
		}
	}
	var all []string
	name, value, assigned := strings.Cut(current, "=")
	before := ""
	switch {
	case waiting != nil:
		all = values(waiting.Value)
		current = strings.TrimPrefix(current, "=")
	case assigned && strings.HasPrefix(current, "-"):
		if flag := flagOf(node, name); flag != nil {
			all, before, current = values(flag.Value), name+"=", value
		}
	case strings.HasPrefix(current, "-"):
		for _, flag := range flagsOf(node) {
			all = append(all, "--"+flag.Name+"\t"+flag.Help)
		}
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				all = append(all, child.Name+"\t"+child.Help)
			}
		}
		if positional < len(node.Positional) {
			all = append(all, values(node.Positional[positional])...)
		}
	}
	var fitting []string
	for _, candidate := range all {
		if strings.HasPrefix(candidate, current) {
			fitting = append(fitting, before+candidate)
		}
	}
	return fitting
}

func values(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}

func childOf(node *kong.Node, name string) *kong.Node {
	if i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name }); i >= 0 {
		return node.Children[i]
	}
	return nil
}

// flagsOf returns the flags of a command and of its parents.
func flagsOf(node *kong.Node) []*kong.Flag { return slices.Concat(node.AllFlags(true)...) }

// flagOf returns the flag that the word names, nil if there is none or the word contains its value.
func flagOf(node *kong.Node, word string) *kong.Flag {
	for _, flag := range flagsOf(node) {
		if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
			return flag
		}
	}
	return nil
}
