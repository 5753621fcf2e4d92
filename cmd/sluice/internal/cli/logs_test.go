package cli

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
)

// heard is a writer that passes each line on.
type heard chan string

func (l heard) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// What an upstream sends unasked on an idle connection is not logged: it may repeat a payload.
func TestAnUpstreamsWordsAreNotLogged(t *testing.T) {
	said := make(heard, 1)
	defer func(w io.Writer, flags int) {
		log.SetOutput(w)
		log.SetFlags(flags)
	}(log.Writer(), log.Flags())
	NewLogger(said, "debug")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	answered := make(chan struct{})
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 4096)) // the request
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-answered
		_, _ = io.WriteString(conn, `{"card":"4111111111111111"}`)
	}()
	var transport http.Transport
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	close(answered)
	line := <-said
	queuetest.Contains(t, "the line of the log", line, "Unsolicited response", `"level":"DEBUG"`)
	if strings.Contains(line, "4111") {
		t.Errorf("the log repeats what the upstream sent: %s", line)
	}
}

// A duration is logged with its unit, not in nanoseconds.
func TestDurationsAreLoggedWithTheirUnits(t *testing.T) {
	var out bytes.Buffer
	slog.New(newHandler(&out, "info")).Info("held", "for", 1500*time.Millisecond, "n", 7)
	if !strings.Contains(out.String(), `"for":"1.5s","n":7`) {
		t.Errorf("logged: %s", &out)
	}
}
