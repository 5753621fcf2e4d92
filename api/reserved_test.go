package api

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/listen"
)

// A full listener still serves probes; other requests get 503 and the connection ends.
func TestReservedSlotsServeProbesAlone(t *testing.T) {
	b := newBench(t)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := listen.Bound(socket, "api", listen.Bounds{Connections: 1})
	srv := listen.Server("", b.s.Intake(), nil)
	l.Attend(srv)
	ended := make(chan error)
	go func() { ended <- srv.Serve(l) }()
	defer func() {
		_ = srv.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	busy, err := net.Dial("tcp", socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, err = io.WriteString(busy, "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	// The handler reads the body.
	if _, err := io.ReadFull(busy, make([]byte, len("HTTP/1.1 100 Continue"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/v1/jobs?state=queued": 503} {
		client := &http.Client{Transport: &http.Transport{}}
		r, err := client.Get("http://" + socket.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != want || !r.Close ||
			want == 503 && !strings.Contains(string(body), "overloaded") {
			t.Errorf("%s: %d %s %v, closed %v", path, r.StatusCode, body, err, r.Close)
		}
		_ = r.Body.Close()
	}
}
