package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// exitcode CODE program args… runs a program and wants this exit code; its output is there for
// stdout and stderr.
func exitcode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode CODE program args…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := err.(*exec.ExitError); ok {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// await BACKGROUND NAME PATTERN waits until a background command has printed a line that the
// pattern matches on standard error or output, written by it to the file, and puts the first group
// into the variable.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: await FILE NAME PATTERN")
	}
	pattern := regexp.MustCompile(args[2])
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		// A file that is written meanwhile is read as it is. A shell in the background may not have
		// made it yet.
		content, _ := os.ReadFile(ts.MkAbs(args[0]))
		if found := pattern.FindStringSubmatch(string(content)); found != nil {
			ts.Setenv(args[1], found[1])
			return
		}
		select {
		case <-poll.C:
		case <-deadline.C:
			ts.Fatalf("%s never matched %s:\n%s", args[0], args[2], ts.ReadFile(args[0]))
		}
	}
}

// take NAME puts a loopback address into the variable that the script keeps occupied.
func take(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: take NAME")
	}
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv(args[0], strings.TrimSpace(l.Addr().String()))
}
