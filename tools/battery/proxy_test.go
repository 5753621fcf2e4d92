package main

import (
	"bufio"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
)

// TestProxyLosesRepliesOfScriptsAlone: the reply before that of a script comes, its own and those
// behind it do not, and the server has got all of them.
func TestProxyLosesRepliesOfScriptsAlone(t *testing.T) {
	dir := t.TempDir()
	server, err := net.Listen("unix", filepath.Join(dir, "server"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	received := make(chan string, 16)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer func() { _ = c.Close() }()
				in := bufio.NewReader(c)
				for {
					raw, err := readValue(in)
					if err != nil {
						return
					}
					name := words(raw, 1)[0]
					received <- name
					answer := map[string]string{"EVALSHA": "*1\r\n:1\r\n", "PUSHING": ">1\r\n+p\r\n:2\r\n"}[name]
					if answer == "" {
						answer = "+" + name + "\r\n"
					}
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	p, err := newProxy(filepath.Join(dir, "proxy"), server.Addr().String(), rand.New(rand.NewPCG(1, 1)), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	admit := "*2\r\n$7\r\nEVALSHA\r\n$40\r\n" + scripts.Commands.Admit.SHA() + "\r\n"
	ask := func(requests string) string {
		t.Helper()
		c, err := net.Dial("unix", filepath.Join(dir, "proxy"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, requests); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer := make([]byte, 0, 100)
		for {
			n, err := c.Read(answer[len(answer):cap(answer)])
			answer = answer[:len(answer)+n]
			switch {
			case errors.Is(err, io.EOF):
				return string(answer) + "EOF"
			case err != nil:
				return string(answer) + err.Error()
			case strings.HasSuffix(string(answer), "+LAST\r\n"):
				return string(answer)
			}
		}
	}
	simple := func(name string) string {
		return "*1\r\n$" + string(rune('0'+len(name))) + "\r\n" + name + "\r\n"
	}
	if got := ask(simple("PING") + simple("PUSHING") +
		simple("LAST")); got != "+PING\r\n>1\r\n+p\r\n:2\r\n+LAST\r\n" {
		t.Errorf("without a script: %q", got)
	}
	for range 3 {
		<-received
	}
	if got := ask(simple("PING") + admit + admit); got != "+PING\r\nEOF" {
		t.Errorf("with two scripts: %q", got)
	}
	for _, want := range []string{"PING", "EVALSHA", "EVALSHA"} {
		select {
		case got := <-received:
			if got != want {
				t.Errorf("the server got %s, not %s", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("the server did not get %s", want)
		}
	}
	p.mu.Lock()
	if p.scripts != 1 || p.lost["admit"] != 1 || p.behind != 1 {
		t.Errorf("%d scripts, lost %v and %d behind", p.scripts, p.lost, p.behind)
	}
	p.mu.Unlock()
	p.lose(0)
	if got := ask(admit + simple("LAST")); got != "*1\r\n:1\r\n+LAST\r\n" {
		t.Errorf("without losses: %q", got)
	}
}
