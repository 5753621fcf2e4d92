package main

import (
	"flag"
	"slices"
	"testing"
)

func TestFlagsAmongFigures(t *testing.T) {
	flags := flag.NewFlagSet("bench", flag.PanicOnError)
	runs, file := flags.Int("runs", 5, ""), flags.String("json", "", "")
	names := figuresIn(flags, []string{"-runs", "2", "P1", "-json", "out", "P6"})
	if !slices.Equal(names, []string{"P1", "P6"}) || *runs != 2 || *file != "out" {
		t.Errorf("figures %q, runs %d, file %q", names, *runs, *file)
	}
}
