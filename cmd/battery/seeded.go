package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/7509e464/sluice/lua/seeded"
)

// bugs are the checks of the tests themselves: each plants a known bug and sees whether the test that is there for it notices.
func bugs() []check {
	return []check{{
		id: "Q1", what: "fourteen known bugs, planted one after the other", target: "the tests find 14 of 14",
		full: scale{limit: 10 * time.Minute}, fullOnly: true, run: plantBugs,
	}}
}

func plantBugs(ctx context.Context, w *world, f *findings) error {
	found := 0
	for _, bug := range seeded.Bugs {
		w.say("planting %s: %s", bug.Name, bug.What)
		caught, err := caughtBy(ctx, bug)
		if err != nil {
			return err
		}
		if caught {
			found++
			continue
		}
		f.because("%s: %s passes although %s", bug.Name, bug.Test, bug.What)
	}
	f.atLeast("found", float64(found), float64(len(seeded.Bugs)), "bugs")
	return nil
}

// caughtBy runs the bug's test in a build that has the bug. A build that fails has caught nothing.
func caughtBy(ctx context.Context, bug seeded.Bug) (bool, error) {
	args := []string{"test", "-tags", "seeded", "-count=1", "-run", bug.Test, bug.Package}
	if bug.Package == "./lua" {
		args = append(args, "-rapid.nofailfile", "-rapid.shrinktime=100ms") // nobody reads the failure
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "SLUICE_SEEDED_BUG="+bug.Name)
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &failed) && strings.Contains(string(out), "--- FAIL"):
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	}
	return false, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
}
