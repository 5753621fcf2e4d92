// Package product finds the module that this one measures, and builds its program.
package product

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Dir returns the root directory of the module.
func Dir(ctx context.Context) (string, error) {
	out, err := run(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/7509e464/sluice"))
	return strings.TrimSpace(out), err
}

// Build builds the program sluice as the absolute path; flags are those of go build.
func Build(ctx context.Context, path string, flags ...string) error {
	dir, err := Dir(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-o", path}, flags, []string{"./cmd/sluice"})...)
	cmd.Dir = dir
	_, err = run(cmd)
	return err
}

func run(cmd *exec.Cmd) (string, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return string(out), nil
}
