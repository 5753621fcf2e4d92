package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// eventsOf reads a stream to its end, each event as name=data.
func eventsOf(body io.Reader) (events []string, err error) {
	s := newStream(io.NopCloser(body), time.Minute, func() {})
	defer s.Close()
	for {
		e, err := s.Next()
		if err != nil {
			return events, err
		}
		events = append(events, e.Name+"="+string(e.Data))
	}
}

func TestStreamReadsEvents(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{": a heartbeat\n\nretry: 1000\n\n", nil},
		{"event: a\ndata: 1\n\ndata: 2\n\n", []string{"a=1", "message=2"}},
		{"event:a\r\ndata:1\r\ndata:  2\r\n\r\n", []string{"a=1\n 2"}},
		{"id: 7\nevent: a\n: between\ndata\n\n", []string{"a="}},
		{"event: without data\n\ndata: 1\n\n", []string{"message=1"}},
		{"event: long\ndata: " + long + "\n\n", []string{"long=" + long}},
		{"data: 1\n\nevent: cut off\ndata: 2\n", []string{"message=1"}},
	} {
		got, err := eventsOf(iotest.HalfReader(strings.NewReader(c.text)))
		if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, io.EOF) {
			t.Errorf("%.60q: %v\n%.300s", c.text, err, diff)
		}
	}
}

func TestStreamIsBounded(t *testing.T) {
	line := "data: " + strings.Repeat("x", maxEvent+100)
	for name, text := range map[string]string{
		"one line": line + "\n\n", "many lines": strings.Repeat(line[:1<<20]+"\n", 10) + "\n",
	} {
		if _, err := eventsOf(strings.NewReader(text)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that is gone without a word is noticed; heartbeats keep a stream.
func TestStreamQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		s := newStream(r, 10*time.Second, cancel)
		go func() {
			for range 3 {
				time.Sleep(9 * time.Second)
				_, _ = io.WriteString(w, ": here\n\n")
			}
		}()
		began := time.Now()
		_, err := s.Next()
		if after := time.Since(began); !errors.Is(err, ErrQuiet) || after != 37*time.Second || ctx.Err() == nil {
			t.Errorf("%v after %v", err, after)
		}
		_ = s.Close()
	})
}

func TestLive(t *testing.T) {
	var asked *http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"type":"urn:sluice:problem:unauthorized","title":"no","status":401}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: overview\ndata: {}\n\n")
	}))
	defer srv.Close()
	c, err := New(srv.URL, "s3cret", srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Live(t.Context(), View{Tenant: "a b", Pool: "erp", Search: "&", Sort: "name", Limit: 7}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := asked.URL.String(); got != "/v1/stream?limit=7&pool=erp&q=%26&sort=name&tenant=a+b" {
		t.Error(got)
	}
	if e, err := s.Next(); err != nil || e.Name != "overview" || string(e.Data) != "{}" {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}

	if c, err = New(srv.URL, "wrong", srv.Client()); err != nil {
		t.Fatal(err)
	}
	var refused *Error
	if _, err := c.Live(t.Context(), View{}, time.Minute); !errors.As(err, &refused) ||
		refused.Kind() != "unauthorized" {
		t.Error(err)
	}
}

// Whatever comes, events have no line ends of the format in their names, and reading ends.
func FuzzStream(f *testing.F) {
	f.Add([]byte("event: a\ndata: 1\n\n: x\r\n\r\ndata\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		events, err := eventsOf(bytes.NewReader(text))
		if err == nil {
			t.Fatal("no end")
		}
		for _, e := range events {
			if name, _, _ := strings.Cut(e, "="); strings.Contains(name, "\n") {
				t.Errorf("%q", e)
			}
		}
		whole := fmt.Sprint(events)
		pieces, _ := eventsOf(iotest.OneByteReader(bytes.NewReader(text)))
		if fmt.Sprint(pieces) != whole {
			t.Errorf("byte by byte: %q, at once: %q", pieces, whole)
		}
	})
}
