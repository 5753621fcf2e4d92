package main

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestChildOutput(t *testing.T) {
	for _, c := range []struct{ text, api, admin string }{
		{`{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"ready","admin":"127.0.0.1:1",` +
			`"store":"redis 7.0.15 at /tmp/s","worker":true,"api":"127.0.0.1:2"}`, "127.0.0.1:2",
			"127.0.0.1:1"},
		{`{"level":"INFO","msg":"ready","admin":"127.0.0.1:3","store":"redis","worker":true}`, "", "127.0.0.1:3"},
		{`{"level":"INFO","msg":"ready","admin":"127.0.0.1:4","store":"redis","worker":false,` +
			`"api":"127.0.0.1:5"}`, "127.0.0.1:5", "127.0.0.1:4"},
	} {
		found := readyLine.FindStringSubmatch(c.text)
		if found == nil || found[1] != c.admin || found[2] != c.api {
			t.Errorf("%s: %q", c.text, found)
		}
	}
	found := bullmqReady.FindStringSubmatch("(node:1) warning\nready bullmq 5.1.2 node 20.20.2\n")
	if found == nil || found[1] != "5.1.2" || found[2] != "20.20.2" {
		t.Errorf("%q", found)
	}
	if v := nginxVersion("nginx version: nginx/1.22.1 (Debian)\n"); v != "nginx 1.22.1 (Debian)" {
		t.Error(v)
	}
	if l := lastLine("npm error code E404\nnpm error a log is there\n\n"); l != "npm error a log is there" {
		t.Errorf("%q", l)
	}
}

func TestNginxConfig(t *testing.T) {
	upstream, err := url.Parse("http://127.0.0.1:9/nginx")
	if err != nil {
		t.Fatal(err)
	}
	text := nginxConfig(parse("200/s"), 1000, "/tmp/n.sock", upstream)
	for _, want := range []string{
		"rate=200r/s;", "burst=1000;", "server 127.0.0.1:9;", "proxy_pass http://sink/nginx;",
		"listen unix:/tmp/n.sock ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

// The first crowd keeps the rate busy until the last has come, or the arrivals would not be a
// queue.
func TestCrowdsKeepTheRateBusy(t *testing.T) {
	r, waiting, last := parse("200/s"), 0, time.Duration(0)
	for _, a := range crowds() {
		left := int((a.At - last) * time.Duration(r.Limit) / r.Period)
		if waiting > 0 && waiting <= left {
			t.Errorf("nothing waits at %v", a.At)
		}
		waiting, last = waiting-min(waiting, left)+a.Jobs, a.At
	}
	if n := (race{arrivals: crowds()}).jobs(); n != 1000 {
		t.Errorf("%d jobs", n)
	}
}

func TestPeerTable(t *testing.T) {
	lines := peerTable("P6-peers", []peerRun{
		{Run: 1, Name: "Sluice", About: "rate 200/s", spacing: spacing{Count: 1000, TauMax: 3}},
		{Run: 1, Name: "nginx", Absent: "no nginx on PATH"},
		{Run: 2, Name: "Sluice", spacing: spacing{Count: 1000, TauMax: 1}},
		{Run: 3, Name: "Sluice", spacing: spacing{Count: 1000, TauMax: 2}},
	})
	if len(lines) != 3 || !strings.Contains(lines[1], "2.00 (1.00–3.00)") ||
		!strings.Contains(lines[2], "absent: no nginx on PATH") {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
}

// The lock file names packages by their hashes and no registry, so that npm asks the one it is
// configured with.
func TestLockFileNamesNoRegistry(t *testing.T) {
	for name, unwanted := range map[string]string{"package.json": "^", "package-lock.json": `"resolved"`} {
		text, err := bullmqFiles.ReadFile("peers/bullmq/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), unwanted) {
			t.Errorf("%s has a %s", name, unwanted)
		}
	}
}

func TestStatOf(t *testing.T) {
	for _, c := range []struct {
		line, name string
		want       float64
	}{
		{"calls=2,usec=35,usec_per_call=17.50", "usec", 35},
		{"calls=2,usec=35,usec_per_call=17.50", "usec_per_call", 17.5},
		{"", "usec", 0},
		{"calls=2", "usec", 0},
	} {
		if got, err := statOf(c.line, c.name); got != c.want || err != nil {
			t.Errorf("%s of %q: %v %v", c.name, c.line, got, err)
		}
	}
	if _, err := statOf("usec=x", "usec"); err == nil {
		t.Error("no number was taken for one")
	}
}

func TestFloorLine(t *testing.T) {
	line := floorLine([]pacedRun{
		{What: "sluice", spacing: spacing{Deviates: 9, TauMax: 99}},
		{What: "floor", spacing: spacing{Deviates: 0.4, Tau999: 1, TauMax: 7}},
		{What: "floor", spacing: spacing{Deviates: 0.6, Tau999: 2, TauMax: 6}},
	})
	if !strings.Contains(line, "gaps in 1 of 2 runs, those of τ* in 1;") {
		t.Error(line)
	}
}
