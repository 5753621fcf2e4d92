package api_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// largeBody has no two equal pieces.
func largeBody(size int) []byte {
	b := make([]byte, size)
	for i := range size / 8 {
		binary.BigEndian.PutUint64(b[8*i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	return b
}

// TestLargeAnswers: an answer of many pieces, or with long headers, is the upstream's, byte for
// byte, at once and later.
func TestLargeAnswers(t *testing.T) {
	body := largeBody(900_001)
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/headers" {
			for i := range 25 {
				w.Header().Add("X-Long", strings.Repeat(string(rune('a'+i)), 1000))
			}
		}
		_, _ = w.Write(body)
	}, asIs)
	client := overHTTP2(t)
	for _, path := range []string{"/x", "/headers"} {
		resp, got := p.ask("GET", "/v1/forward/partner"+path, "")
		if resp.StatusCode != http.StatusOK || got != string(body) {
			t.Fatalf("%s: %d, %d bytes", path, resp.StatusCode, len(got))
		}
		later := "/v1/jobs/" + resp.Header.Get("Sluice-Job") + "/response"
		resp, got = p.ask("GET", later, "")
		if resp.StatusCode != http.StatusOK || got != string(body) || resp.ContentLength != int64(len(body)) {
			t.Errorf("%s later: %d, %d bytes", path, resp.StatusCode, len(got))
		}
		if resp, got = p.ask("HEAD", later, ""); resp.StatusCode != http.StatusOK || got != "" {
			t.Errorf("%s, HEAD: %d, %d bytes", path, resp.StatusCode, len(got))
		}
		for _, url := range []string{p.url, p.listener} {
			resp, err := client.Get(url + later)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s over HTTP/2: %d bytes, %v", path, len(got), err)
			}
		}
	}
}

// vanishing deletes the record of a job once the start of its answer was read.
type vanishing struct {
	api.Ends
	q    *queue.Queue
	gone *atomic.Bool
}

func (v vanishing) Answer(ctx context.Context, tenant, id string, end queue.End) (queue.Job, *queue.Answer, error) {
	j, a, err := v.Ends.Answer(ctx, tenant, id, end)
	if a != nil && v.gone.Load() {
		keys, err := store.Of(v.q).Patient.Keys(ctx, "*job:"+id).Result()
		if err != nil || len(keys) != 1 {
			return j, nil, err
		}
		store.Of(v.q).Patient.Del(ctx, keys...)
	}
	return j, a, err
}

// TestAnswerThatExpires: where the record goes while its answer is sent, the client does not take
// half an answer for a whole one.
func TestAnswerThatExpires(t *testing.T) {
	v := vanishing{gone: new(atomic.Bool)}
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(largeBody(900_001)) }, asIs,
		func(p *api.Ports) { v.Ends, *p.Ends() = *p.Ends(), &v })
	v.q = p.q
	client := overHTTP2(t)
	for name, c := range map[string]*http.Client{"HTTP/1.1": http.DefaultClient, "HTTP/2": client} {
		v.gone.Store(false)
		resp, _ := p.ask("GET", "/v1/forward/partner/x", "")
		v.gone.Store(true)
		resp, err := c.Get(p.url + "/v1/jobs/" + resp.Header.Get("Sluice-Job") + "/response")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil || resp.ContentLength != 900_001 {
			t.Errorf("%s: %d of %d bytes end well", name, len(got), resp.ContentLength)
		}
	}
}

// TestUnreadAnswers: 600 streams of HTTP/2 whose windows are closed hold little memory, and others
// get their answers.
func TestUnreadAnswers(t *testing.T) {
	const streams, most = 200, 600 * 80 << 10
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(largeBody(1_000_000)) },
		func(c *api.Config, _ *worker.Route, _ *queue.Queue) { c.MaxRequests = 10_000 })
	resp, _ := p.ask("GET", "/v1/forward/partner/x", "")
	id := resp.Header.Get("Sluice-Job")
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	before := heap()
	var begun atomic.Int64
	for range 3 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		out := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		frame := func(kind, flags byte, stream uint32, payload []byte) {
			out = append(out, 0, byte(len(payload)>>8), byte(len(payload)), kind, flags)
			out = append(binary.BigEndian.AppendUint32(out, stream), payload...)
		}
		literal := func(name, value string) []byte {
			return append(append(append([]byte{0, byte(len(name))}, name...), byte(len(value))), value...)
		}
		frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0}) // SETTINGS_INITIAL_WINDOW_SIZE 0
		for i := range uint32(streams) {
			head := []byte{0x82, 0x86} // GET, http
			head = append(head, literal(":path", "/v1/jobs/"+id+"/response")...)
			head = append(head, literal(":authority", "localhost")...)
			frame(1, 5, 2*i+1, head)
		}
		if _, err := conn.Write(out); err != nil {
			t.Fatal(err)
		}
		go func() {
			head := make([]byte, 9)
			for {
				if _, err := io.ReadFull(conn, head); err != nil {
					return
				}
				if _, err := io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
					return
				}
				if head[3] == 1 {
					begun.Add(1)
				}
			}
		}()
	}
	queuetest.Await(t, "all to be answered", func() bool { return begun.Load() >= 3*streams })
	// What came beside the heads, and what a first collection only marks, goes a little later.
	queuetest.Await(t, "600 unread answers of 1 MB to hold at most 80 KB each", func() bool {
		return heap() <= before+most
	})
	if resp, got := p.ask("GET", "/v1/forward/partner/x", "", "Sluice-Tenant", "other"); resp.StatusCode != http.StatusOK || len(got) != 1_000_000 {
		t.Errorf("another tenant: %d, %d bytes", resp.StatusCode, len(got))
	}
}
