package queue_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// relayed leases a job and begins to pass on its answer. most bytes of it are stored.
func relayed(t *testing.T, q *queue.Queue, most int) (queue.Lease, *queue.Relay) {
	t.Helper()
	return relayedOf(t, q, "acme", most)
}

func relayedOf(t *testing.T, q *queue.Queue, tenant string, most int) (queue.Lease, *queue.Relay) {
	t.Helper()
	admitted(t, q, queue.Submission{Tenant: tenant, Route: "default", Type: "GET /", Payload: []byte("GET /\r\n\r\n")})
	l := leased(t, q, 1)[0]
	r, err := q.Broker().Relay(t.Context(), l.LeaseRef, tenant, []byte("HTTP/1.1 200\r\nX: y\r\n\r\n"), most, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, func() {})
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return l, r
}

// reader begins to read the answer.
func reader(t *testing.T, q *queue.Queue, id string) *queue.Stream {
	t.Helper()
	s, err := q.Stream(t.Context(), "acme", id)
	if err != nil || s == nil {
		t.Fatalf("Stream: %v, %v", s, err)
	}
	t.Cleanup(s.Close)
	return s
}

// readTo reads until the answer has n bytes, or ends.
func readTo(ctx context.Context, s *queue.Stream, n int) (body []byte, err error) {
	for len(body) < n {
		piece, err := s.Next(ctx)
		if err != nil {
			return body, err
		}
		body = append(body, piece...)
	}
	return body, nil
}

// eachReader runs a test with readers in the process of the worker and in another one, on all
// engines; the store of the second process is encrypted, too.
func eachReader(t *testing.T, test func(t *testing.T, worker, api *queue.Queue)) {
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, keys := openEngine(t, options(t)), keyFile(t)
			worker := encrypted(t, e, keys)
			t.Run("here", func(t *testing.T) { test(t, worker, worker) })
			t.Run("elsewhere", func(t *testing.T) { test(t, worker, encrypted(t, e, keys)) })
		})
	}
}

// TestRelay: readers get an answer while it comes, from its first byte on, and its end once the job
// has succeeded.
func TestRelay(t *testing.T) {
	t.Parallel()
	eachReader(t, func(t *testing.T, worker, api *queue.Queue) {
		l, r := relayed(t, worker, 1<<20)
		first := reader(t, api, l.ID)
		if string(first.Head) != "HTTP/1.1 200\r\nX: y\r\n\r\n" || first.Truncated {
			t.Errorf("the head is %q, truncated %v", first.Head, first.Truncated)
		}
		whole := bytes.Repeat([]byte("0123456789abcde\n"), 10_000)
		if err := r.Write(t.Context(), whole[:100]); err != nil {
			t.Fatal(err)
		}
		got, err := readTo(t.Context(), first, 100)
		if err != nil || !bytes.Equal(got, whole[:100]) {
			t.Fatalf("%d bytes came of 100, %v", len(got), err)
		}
		if err := r.Write(t.Context(), whole[100:]); err != nil {
			t.Fatal(err)
		}
		late := reader(t, api, l.ID)
		if err := r.End(t.Context(), []byte("HTTP/1.1 200\r\nSum: 1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		for name, s := range map[string]*queue.Stream{"the first": first, "the late": late} {
			begun := 0
			if s == first {
				begun = 100
			}
			rest, err := readTo(t.Context(), s, len(whole)-begun)
			if err != nil || !bytes.Equal(rest, whole[begun:]) {
				t.Errorf("%s reader: %d bytes, want %d, %v", name, len(rest), len(whole)-begun, err)
			}
			soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if _, err := s.Next(soon); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s reader has an end before the job has one: %v", name, err)
			}
			cancel()
		}
		body, total, cut := r.Stored()
		settle(t, worker, queue.Settlement{
			LeaseRef: l.LeaseRef, Tenant: "acme", Event: shaper.Succeed, Retention: time.Minute, Relayed: true,
			Answer: append([]byte("HTTP/1.1 200\r\n\r\n"), body...),
		})
		if total != int64(len(whole)) || cut {
			t.Errorf("%d bytes, cut %v", total, cut)
		}
		for name, s := range map[string]*queue.Stream{"the first": first, "the late": late} {
			if piece, err := s.Next(t.Context()); err != io.EOF {
				t.Errorf("the end of %s reader: %d bytes, %v", name, len(piece), err)
			}
			if !strings.Contains(string(s.Trailers()), "Sum: 1") {
				t.Errorf("the trailers of %s reader: %q", name, s.Trailers())
			}
		}
		for _, key := range []string{"Stream", "Beyond"} {
			shard, _ := store.Of(worker).ShardOfID(l.ID)
			name := map[string]string{"Stream": shard.Stream(l.ID), "Beyond": shard.Beyond(l.ID)}[key]
			if ttl := store.Of(worker).Patient.TTL(t.Context(), name).Val(); ttl > 30*time.Second {
				t.Errorf("%s stays for %v", key, ttl)
			}
		}
	})
}

// TestRelayInFewCalls: what an upstream sends at once does not take a call of the store for each
// part, which would be slow where Redis is far.
func TestRelayInFewCalls(t *testing.T) {
	t.Parallel()
	eachReader(t, func(t *testing.T, worker, api *queue.Queue) {
		worker.StopKeeping()
		var calls atomic.Int64
		worker.AfterScript("relay", func() { calls.Add(1) })
		l, r := relayed(t, worker, 4<<20)
		whole := bytes.Repeat([]byte("0123456789abcde\n"), queue.RelayAhead/16)
		s := reader(t, api, l.ID)
		if err := r.Write(t.Context(), whole); err != nil {
			t.Fatal(err)
		}
		got, err := readTo(t.Context(), s, len(whole))
		if err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%d bytes, want %d, %v", len(got), len(whole), err)
		}
		r.Drain(t.Context())
		if n := calls.Load(); n > 7 { // one is for the head
			t.Errorf("1 MiB took %d calls", n)
		}
	})
}

// TestRelayBreaks: an answer that breaks off never has a clean end.
func TestRelayBreaks(t *testing.T) {
	t.Parallel()
	eachReader(t, func(t *testing.T, worker, api *queue.Queue) {
		l, r := relayed(t, worker, 1<<20)
		s := reader(t, api, l.ID)
		if err := r.Write(t.Context(), []byte("half")); err != nil {
			t.Fatal(err)
		}
		if got, err := readTo(t.Context(), s, 4); err != nil || string(got) != "half" {
			t.Fatalf("%q, %v", got, err)
		}
		r.Break()
		settle(t, worker, queue.Settlement{
			LeaseRef: l.LeaseRef, Tenant: "acme", Event: shaper.Die, Final: true, Retention: time.Minute, Relayed: true,
			Error: &queue.JobError{Message: "the answer broke off after 4 bytes"},
		})
		if piece, err := s.Next(t.Context()); !errors.Is(err, queue.ErrBrokeOff) {
			t.Errorf("behind the break: %q, %v", piece, err)
		}
	})
}

// TestRelayBeyond: of a longer answer the readers that wait get all, and those that come later what
// is stored, with a note.
func TestRelayBeyond(t *testing.T) {
	t.Parallel()
	eachReader(t, func(t *testing.T, worker, api *queue.Queue) {
		l, r := relayed(t, worker, 1000)
		s := reader(t, api, l.ID)
		whole := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // 3.2 MB: three times what may be ahead
		wrote := make(chan error, 1)
		go func() {
			for at := 0; at < len(whole); at += 10_000 {
				if err := r.Write(t.Context(), whole[at:min(len(whole), at+10_000)]); err != nil {
					wrote <- err
					return
				}
			}
			wrote <- r.End(t.Context(), nil)
		}()
		got, err := readTo(t.Context(), s, len(whole))
		if err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%d bytes of %d, %v", len(got), len(whole), err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		late := reader(t, api, l.ID)
		if !late.Truncated {
			t.Error("what comes late is not truncated")
		}
		got, err = readTo(t.Context(), late, 1001)
		if err != io.EOF || !bytes.Equal(got, whole[:1000]) {
			t.Errorf("the late reader: %d bytes of 1000, %v", len(got), err)
		}
		if body, total, cut := r.Stored(); len(body) != 1000 || total != int64(len(whole)) || !cut {
			t.Errorf("stored %d bytes of %d, cut %v", len(body), total, cut)
		}
		settle(t, worker, queue.Settlement{LeaseRef: l.LeaseRef, Tenant: "acme", Event: shaper.Succeed, Retention: time.Minute, Relayed: true,
			Answer: append([]byte("HTTP/1.1-cut 200\r\n\r\n"), whole[:1000]...)})
		if piece, err := s.Next(t.Context()); err != io.EOF {
			t.Errorf("behind the end: %d bytes, %v", len(piece), err)
		}
	})
}

// TestRelayWaitsForReaders: an answer is read at most 1 MiB ahead of the reader that has most, and
// goes on when that one does, or leaves.
func TestRelayWaitsForReaders(t *testing.T) {
	t.Parallel()
	eachReader(t, func(t *testing.T, worker, api *queue.Queue) {
		l, r := relayed(t, worker, 8<<20)
		s := reader(t, api, l.ID)
		if err := r.Write(t.Context(), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := readTo(t.Context(), s, 1000); err != nil {
			t.Fatal(err)
		}
		total := 1000
		for full := false; !full && total < 5<<20; total += 100_000 {
			limited, cancel := context.WithTimeout(t.Context(), time.Second)
			full = r.Write(limited, make([]byte, 100_000)) != nil
			cancel()
		}
		if total < 1<<20 || total > 1<<20+300_000 {
			t.Errorf("it was read %d bytes ahead", total)
		}
		s.Close()
		if err := r.Write(t.Context(), make([]byte, 1<<20)); err != nil {
			t.Errorf("after the reader had left: %v", err)
		}
		r.Break()
		settle(t, worker, queue.Settlement{LeaseRef: l.LeaseRef, Tenant: "acme", Event: shaper.Die, Final: true, Retention: time.Minute})
	})
}

// TestRelayLooksSeldom: an answer that waits for a slow reader asks the store seldom how far that
// is.
func TestRelayLooksSeldom(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	e := openEngine(t, queue.EngineOptions{URL: url})
	worker, api := beside(t, e, queue.Options{Defaults: perSecond(1000)}), beside(t, e, queue.Options{Defaults: perSecond(1000)})
	l, r := relayed(t, worker, 8<<20)
	if err := r.Write(t.Context(), make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := readTo(t.Context(), reader(t, api, l.ID), 1000); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), make([]byte, queue.RelayAhead)); err != nil {
		t.Fatal(err)
	}
	r.Drain(t.Context())
	c := client(t, url)
	before := commandStats(t, c)["zrevrange"]
	limited, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := r.Write(limited, make([]byte, 1000)); err == nil {
		t.Error("the reader was left behind")
	}
	if n := commandStats(t, c)["zrevrange"] - before; n < 1 || n > 20 {
		t.Errorf("it asked %d times in a second, want 1 to 20", n)
	}
	r.Break()
}

// TestRelayOfALostLease: only the current lease passes an answer on.
func TestRelayOfALostLease(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := encrypted(t, openEngine(t, options(t)), keyFile(t))
			job := admitted(t, q, queue.Submission{Tenant: "acme", Route: "default", Type: "a", Payload: []byte("1")})
			l := leased(t, q, 1)[0]
			old := l.LeaseRef
			old.Epoch++
			if _, err := q.Broker().Relay(t.Context(), old, "acme", nil, 1, time.Minute); !errors.Is(err, queue.ErrBrokeOff) {
				t.Errorf("of another epoch: %v", err)
			}
			if s, err := q.Stream(t.Context(), "acme", job.ID); s != nil || err != nil {
				t.Errorf("it has an answer: %v, %v", s, err)
			}
			if s, err := q.Stream(t.Context(), "other", job.ID); s != nil || err != nil {
				t.Errorf("of another tenant: %v, %v", s, err)
			}
		})
	}
}

// TestWorkerOfARelayDies: a request whose answer had begun is not sent again: its job has failed
// for good, and its readers learn that.
func TestWorkerOfARelayDies(t *testing.T) {
	t.Parallel()
	eachReader(t, func(t *testing.T, worker, api *queue.Queue) {
		job := admitted(t, worker, queue.Submission{Tenant: "acme", Route: "default", Type: "a", Payload: []byte("1")})
		shard := store.Of(worker).ShardOf("acme").Index
		c := worker.Broker().Consumer("dies"+t.Name(), shard)
		short := queue.TickOptions{Max: 1, Lease: 300 * time.Millisecond, Horizon: 10 * time.Millisecond, Sweep: 10 * time.Millisecond}
		var l queue.Lease
		poll := func() bool {
			tick, err := c.Tick(t.Context(), short)
			if err != nil {
				t.Fatal(err)
			}
			if len(tick.Leases) > 0 {
				l = tick.Leases[0]
			}
			return len(tick.Leases) > 0
		}
		for !poll() {
			time.Sleep(time.Millisecond)
		}
		r, err := worker.Broker().Relay(t.Context(), l.LeaseRef, "acme", []byte("HTTP/1.1 200\r\n\r\n"), 1000, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		s := reader(t, api, l.ID)
		ctx, dies := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() {
			defer close(ran)
			r.Run(ctx, func() {})
		}()
		if err := r.Write(t.Context(), []byte("begun")); err != nil {
			t.Fatal(err)
		}
		if got, err := readTo(t.Context(), s, 5); err != nil || string(got) != "begun" {
			t.Fatalf("%q, %v", got, err)
		}
		if api == worker {
			time.Sleep(300 * time.Millisecond) // the store gets it seldom, for it has no reader there
		}
		dies()
		<-ran
		for again := time.Now().Add(10 * time.Second); ; {
			if poll() {
				t.Fatal("the request is leased again")
			}
			if job, err = api.Job(t.Context(), "acme", job.ID); err != nil {
				t.Fatal(err)
			}
			if job.State.Done() || time.Now().After(again) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if e := job.LastError; job.State != shaper.Dead || e == nil || e.Message != "the answer broke off after 5 bytes" || e.At.IsZero() {
			t.Errorf("the job is %s: %+v", job.State, e)
		}
		if api != worker {
			if _, err := s.Next(t.Context()); !errors.Is(err, queue.ErrBrokeOff) {
				t.Errorf("the reader gets %v", err)
			}
		}
		r.Break()
		if p, err := worker.Tenant(t.Context(), "acme"); err != nil || p.Figures.Dead != 0 {
			t.Errorf("%d dead letters, %v", p.Figures.Dead, err)
		}
	})
}

// TestLeave: the worker learns that a client has left, in whichever process it is.
func TestLeave(t *testing.T) {
	t.Parallel()
	eachReader(t, func(t *testing.T, worker, api *queue.Queue) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		wakes := worker.Broker().Wakes(ctx)
		<-wakes // it has connected
		id, err := worker.NewID("acme", "default")
		if err != nil {
			t.Fatal(err)
		}
		left := make(chan struct{})
		defer worker.Broker().OnLeave(id, func() { close(left) })()
		for gone := false; !gone; {
			if err := api.Leave(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			select {
			case <-left:
				gone = true
			case <-wakes:
			case <-time.After(100 * time.Millisecond): // the subscription of the shard is not there yet
			}
		}
		stop()
		for range wakes {
		}
	})
}

// TestRelayWithoutRoom: while answers have no room in the store, no more of one is stored, but who
// waits for it gets all of it. Redis gets the parts that a reader elsewhere needs, and no more.
func TestRelayWithoutRoom(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	for _, here := range []bool{true, false} {
		e := openEngine(t, queue.EngineOptions{URL: redistest.Start(t).URL()})
		worker := beside(t, e, queue.Options{Defaults: perSecond(1000), Store: queue.StoreBounds{Bytes: 400_000, FlowShare: 50}})
		api := worker
		if !here {
			api = beside(t, e, queue.Options{Defaults: perSecond(1000)})
		}
		l, r := relayed(t, worker, 1<<20)
		s := reader(t, api, l.ID)
		whole := bytes.Repeat([]byte("0123456789abcde\n"), 100_000)
		wrote := make(chan error, 1)
		go func() {
			for rest := range slices.Chunk(whole, 16<<10) {
				if err := r.Write(t.Context(), rest); err != nil {
					wrote <- err
					return
				}
			}
			wrote <- r.End(t.Context(), nil)
		}()
		got, err := readTo(t.Context(), s, len(whole))
		if err != nil || !bytes.Equal(got, whole) {
			t.Errorf("here %v: %d bytes of %d came, %v", here, len(got), len(whole), err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		if body, _, cut := r.Stored(); !cut || len(body) > 400_000 || len(r.Body()) <= len(body) {
			t.Errorf("here %v: %d bytes are stored, cut %v", here, len(body), cut)
		}
		shard, _ := store.Of(worker).ShardOfID(l.ID)
		beyond := store.Of(worker).Patient.XLen(t.Context(), shard.Beyond(l.ID)).Val()
		if beyond > 60 {
			t.Errorf("here %v: %d parts are in the store beyond the stored ones", here, beyond)
		}
	}
}

// TestRelayWithoutRoomForAny: a reader that comes within relayExpects gets all of an answer of
// which the store has no room for a byte.
func TestRelayWithoutRoomForAny(t *testing.T) {
	t.Parallel()
	e := openEngine(t, queue.EngineOptions{URL: redistest.Start(t).URL()})
	worker := beside(t, e, queue.Options{Defaults: perSecond(1000), Store: queue.StoreBounds{Bytes: 1}})
	api := beside(t, e, queue.Options{Defaults: perSecond(1000)})
	l, r := relayed(t, worker, 1<<20)
	whole := bytes.Repeat([]byte("0123456789abcde\n"), 3000)
	if err := r.Write(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.End(t.Context(), nil) }()
	time.Sleep(100 * time.Millisecond) // in which its parts could be given up
	s := reader(t, api, l.ID)
	if s.Truncated {
		t.Fatal("the reader counts as one that came after the answer")
	}
	if got, err := readTo(t.Context(), s, len(whole)); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%d bytes of %d came, %v", len(got), len(whole), err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestRelaySeldom: while only this process reads an answer, the store gets it seldom. A reader that
// comes in another process has it stored at once.
func TestRelaySeldom(t *testing.T) {
	t.Parallel()
	e := openEngine(t, queue.EngineOptions{URL: redistest.Start(t).URL()})
	worker, api := beside(t, e, queue.Options{Defaults: perSecond(1000)}), beside(t, e, queue.Options{Defaults: perSecond(1000)})
	ctx, stop := context.WithCancel(t.Context())
	wakes := worker.Broker().Wakes(ctx)
	<-wakes // it has connected
	l, r := relayed(t, worker, 1<<20)
	r.StoreEach(time.Hour)
	reader(t, worker, l.ID)
	whole := bytes.Repeat([]byte("0123456789abcde\n"), 20_000)
	stored := func(n int64) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); r.InStore() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d bytes are stored, want %d", r.InStore(), n)
			}
		}
	}
	at := 0
	for _, to := range []int{100, 140_000} { // the first bytes, and then many
		if err := r.Write(t.Context(), whole[at:to]); err != nil {
			t.Fatal(err)
		}
		stored(int64(to))
		at = to
	}
	var calls atomic.Int64
	worker.AfterScript("relay", func() { calls.Add(1) })
	for ; at < 170_000; at += 100 {
		if err := r.Write(t.Context(), whole[at:at+100]); err != nil {
			t.Fatal(err)
		}
	}
	if n := calls.Load(); n != 0 || r.InStore() != 140_000 {
		t.Errorf("%d bytes are stored, by %d calls", r.InStore(), n)
	}
	for stop := time.Now().Add(20 * time.Second); ; {
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		s, err := api.Stream(limited, "acme", l.ID)
		if err != nil || s == nil {
			t.Fatalf("%v, %v", s, err)
		}
		got, err := readTo(limited, s, at)
		cancel()
		s.Close()
		if err == nil && bytes.Equal(got, whole[:at]) {
			break
		}
		if time.Now().After(stop) { // until then, the subscription of the shard may not be there
			t.Fatalf("%d bytes of %d, %v", len(got), at, err)
		}
	}
	r.Break()
	stop()
	for range wakes {
	}
}

// TestRelayToReadersHere: a reader in the worker's process takes the answer from memory, also if it
// looks while the worker still waits for the store to have the head.
func TestRelayToReadersHere(t *testing.T) {
	t.Parallel()
	q := beside(t, embeddedEngine(t), queue.Options{Defaults: perSecond(1000)})
	admitted(t, q, queue.Submission{Tenant: "acme", Route: "default", Type: "GET /", Payload: []byte("GET /\r\n\r\n")})
	l := leased(t, q, 1)[0]
	looked := false
	q.AfterScript("relay", func() {
		if looked {
			return
		}
		looked = true
		if s, err := q.Stream(t.Context(), "acme", l.ID); s != nil || err != nil {
			t.Errorf("before the answer has begun here: %v, %v", s, err)
		}
	})
	r, err := q.Broker().Relay(t.Context(), l.LeaseRef, "acme", []byte("HTTP/1.1 200\r\n\r\n"), 100, time.Minute)
	if err != nil || !looked {
		t.Fatal(looked, err)
	}
	s := reader(t, q, l.ID)
	if err := r.Write(t.Context(), []byte("a")); err != nil {
		t.Fatal(err)
	}
	if got, err := readTo(t.Context(), s, 1); err != nil || string(got) != "a" { // nothing runs that stores it
		t.Errorf("%q, %v", got, err)
	}
	r.Break()
}

// TestRelaysOfOneTenant: the running answers of one tenant do not use up what all may have.
func TestRelaysOfOneTenant(t *testing.T) {
	t.Parallel()
	const all = 4 << 20
	q := beside(t, embeddedEngine(t), queue.Options{
		Defaults: perSecond(1000), Store: queue.StoreBounds{Bytes: 2 * all, FlowShare: 50},
	})
	whole := bytes.Repeat([]byte("0123456789abcde\n"), all/16/2)
	sum, greedy := 0, []*queue.Relay(nil)
	for range 4 { // each is half of what all may have
		_, r := relayedOf(t, q, "greedy", 2*all)
		if err := r.Write(t.Context(), whole); err != nil {
			t.Fatal(err)
		}
		r.Drain(t.Context())
		body, _, _ := r.Stored()
		sum, greedy = sum+len(body), append(greedy, r)
	}
	if sum < all/4 || sum > all*3/4 {
		t.Errorf("%d bytes of running answers of one tenant are stored, %d of all may be", sum, all)
	}
	l, r := relayedOf(t, q, "quiet", 2*all)
	if err := r.Write(t.Context(), whole[:all/8]); err != nil {
		t.Fatal(err)
	}
	if err := r.End(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if body, _, cut := r.Stored(); cut || len(body) != all/8 {
		t.Errorf("%d bytes of the other tenant's answer are stored, cut %v", len(body), cut)
	}
	s, err := q.Stream(t.Context(), "quiet", l.ID)
	if err != nil || s == nil {
		t.Fatalf("%v, %v", s, err)
	}
	defer s.Close()
	if got, err := readTo(t.Context(), s, all/8); err != nil || len(got) != all/8 || s.Truncated {
		t.Errorf("%d bytes come, truncated %v, %v", len(got), s.Truncated, err)
	}
	for _, r := range greedy {
		r.Break()
	}
	if n := q.HeldParts(); n != 0 {
		t.Errorf("%d bytes count as running after the end", n)
	}
}

// TestRelayWaitsForAClient: a reader whose client takes nothing for a while, but no longer than it
// may, gets the rest.
func TestRelayWaitsForAClient(t *testing.T) {
	t.Parallel()
	e := openEngine(t, queue.EngineOptions{URL: redistest.Start(t).URL()})
	worker, api := beside(t, e, queue.Options{Defaults: perSecond(1000)}), beside(t, e, queue.Options{Defaults: perSecond(1000)})
	l, r := relayed(t, worker, 1000)
	s := reader(t, api, l.ID)
	if err := r.Write(t.Context(), make([]byte, 50_000)); err != nil {
		t.Fatal(err)
	}
	got, err := readTo(t.Context(), s, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	shard, _ := store.Of(worker).ShardOfID(l.ID)
	for began := time.Now(); time.Since(began) < 6*time.Second; { // longer than a reader may be silent
		if n := store.Of(worker).Patient.ZCard(t.Context(), shard.Reading(l.ID)).Val(); n != 1 {
			t.Fatalf("%d readers after %v", n, time.Since(began))
		}
		<-time.After(100 * time.Millisecond)
	}
	if err := r.Write(t.Context(), make([]byte, 1_000_000)); err != nil {
		t.Fatal(err)
	}
	rest, err := readTo(t.Context(), s, 1_050_000-len(got))
	if err != nil {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
}

// TestRelayWithoutWorkers: where the last worker has died, nobody ends its job. Its readers see
// that the lease is over.
func TestRelayWithoutWorkers(t *testing.T) {
	t.Parallel()
	e := openEngine(t, queue.EngineOptions{URL: redistest.Start(t).URL()})
	worker, api := beside(t, e, queue.Options{Defaults: perSecond(1000)}), beside(t, e, queue.Options{Defaults: perSecond(1000)})
	l, r := relayed(t, worker, 1000)
	s := reader(t, api, l.ID)
	if err := r.Write(t.Context(), []byte("half")); err != nil {
		t.Fatal(err)
	}
	if _, err := readTo(t.Context(), s, 4); err != nil {
		t.Fatal(err)
	}
	shard, _ := store.Of(worker).ShardOfID(l.ID)
	if err := store.Of(worker).Patient.ZAdd(t.Context(), shard.Leases(), redis.Z{Score: 1, Member: l.ID}).Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if piece, err := s.Next(ctx); !errors.Is(err, queue.ErrBrokeOff) {
		t.Errorf("%q, %v", piece, err)
	}
	if took := time.Since(began); took < 3*time.Second || took > 15*time.Second {
		t.Errorf("the break was seen after %v", took)
	}
}

// TestRelayIsErased: an erasure ends the requests whose answers come now, and leaves no part of
// them.
func TestRelayIsErased(t *testing.T) {
	t.Parallel()
	q := beside(t, embeddedEngine(t), queue.Options{Defaults: perSecond(1000)})
	l, r := relayed(t, q, 1000)
	left := make(chan struct{})
	defer q.Broker().OnLeave(l.ID, func() { close(left) })()
	if err := r.Write(t.Context(), make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	reader(t, q, l.ID)
	if e, err := q.Erase(t.Context(), "acme", ""); err != nil || !e.More || e.Running != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	<-left
	r.Break()
	settle(t, q, queue.Settlement{
		LeaseRef: l.LeaseRef, Tenant: "acme", Event: shaper.Die, Final: true, Retention: time.Minute, Relayed: true,
	})
	for more, cursor := true, ""; more; {
		e, err := q.Erase(t.Context(), "acme", cursor)
		if err != nil {
			t.Fatal(err)
		}
		more, cursor = e.More, e.Cursor
	}
	if keys := store.Of(q).Patient.Keys(t.Context(), "*"+l.ID+"*").Val(); len(keys) > 0 {
		t.Errorf("%q are left", keys)
	}
}

// TestRelayEndsBehindItsReader: an answer ends after a reader has its last byte, and the store
// keeps no more of it, because it has just as many bytes as may be stored, or there is no room.
func TestRelayEndsBehindItsReader(t *testing.T) {
	t.Parallel()
	const size = 300_000
	for name, o := range map[string]struct {
		most int
		room queue.StoreBounds
	}{
		"as many as may be stored": {size, queue.StoreBounds{}},
		"no room":                  {1 << 20, queue.StoreBounds{Bytes: 400_000, FlowShare: 50}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openEngine(t, queue.EngineOptions{URL: redistest.Start(t).URL()})
			worker := beside(t, e, queue.Options{Defaults: perSecond(1000), Store: o.room})
			l, r := relayed(t, worker, o.most)
			s := reader(t, beside(t, e, queue.Options{Defaults: perSecond(1000)}), l.ID)
			whole := bytes.Repeat([]byte("x"), size)
			if err := r.Write(t.Context(), whole); err != nil {
				t.Fatal(err)
			}
			if got, err := readTo(t.Context(), s, size); err != nil || !bytes.Equal(got, whole) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			queuetest.Await(t, "all to be stored", func() bool { return r.InStore() == size })
			if err := r.End(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRelayWhileRedisIsFull: a part that Redis has no memory for is stored later, before those
// behind it.
func TestRelayWhileRedisIsFull(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	redis := redistest.Start(t)
	admin, e := client(t, redis.URL()), openEngine(t, queue.EngineOptions{URL: redis.URL(), AllowUnsafe: true})
	worker, api := beside(t, e, queue.Options{Defaults: perSecond(1000)}), beside(t, e, queue.Options{Defaults: perSecond(1000)})
	l, r := relayed(t, worker, 8<<20)
	s := reader(t, api, l.ID)
	whole := bytes.Repeat([]byte("0123456789abcde\n"), 200_000)
	done, full := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(full)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
				admin.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(n%2)) // 1 byte, or no bound
			}
		}
	}()
	wrote := make(chan error, 1)
	go func() {
		for rest := range slices.Chunk(whole, 100_000) {
			if err := r.Write(t.Context(), rest); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	got, err := readTo(t.Context(), s, len(whole))
	close(done)
	<-full
	admin.ConfigSet(t.Context(), "maxmemory", "0")
	if err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%d bytes of %d, %v", len(got), len(whole), err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err := r.End(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
