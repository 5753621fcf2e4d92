package main

import (
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestChildTalksAndEnds(t *testing.T) {
	defer goleak.VerifyNone(t)
	c, err := spawn(exec.Command("sh", "-c",
		`echo "ready one"; read line; echo "got $line"; exec sleep 1000`), t.TempDir(), "talker")
	if err != nil {
		t.Fatal(err)
	}
	defer c.end()
	if said, err := c.awaitLine(t.Context(), regexp.MustCompile(`(?m)^ready (\w+)$`)); err != nil ||
		said[0] != "one" {
		t.Fatalf("%q %v", said, err)
	}
	if _, err := c.stdin.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.awaitLine(t.Context(), regexp.MustCompile(`(?m)^got go$`)); err != nil {
		t.Fatal(err)
	}
	c.end()
	if c.cmd.ProcessState.Success() {
		t.Error("it ended by itself")
	}
	c.end() // of one that is gone
	(*child)(nil).end()
}

// A child that ends before it is ready says why.
func TestChildThatFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	c, err := spawn(exec.Command("sh", "-c", "echo no such file >&2; exit 3"), t.TempDir(), "failing")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.awaitLine(t.Context(), redisReady); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	if said, err := c.awaitLine(t.Context(), regexp.MustCompile(`no such (\w+)`)); err != nil || said[0] != "file" {
		t.Errorf("what it said before its end: %q %v", said, err)
	}
	if err := complete(t.Context(), exec.Command("sh", "-c", "echo broken; exit 1"), t.TempDir(),
		"failing"); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
	if err := complete(t.Context(), exec.Command("true"), t.TempDir(), "true"); err != nil {
		t.Error(err)
	}
	if _, err := spawn(exec.Command("/nowhere/at/all"), t.TempDir(), "nothing"); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestNotes(t *testing.T) {
	defer goleak.VerifyNone(t)
	n, err := newNotes()
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	for _, path := range []string{"/a", "/b", "/a"} {
		if err := post(hc, n.url+path); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.await(t.Context(), "/a", 2); err != nil {
		t.Fatal(err)
	}
	if at := n.take("/a"); len(at) != 2 || at[0] >= at[1] {
		t.Errorf("%v", at)
	}
	if n.count("/a") != 0 || n.count("/b") != 1 {
		t.Error("the wrong ones were forgotten")
	}
}
