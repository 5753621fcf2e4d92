package burstlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// in runs do in virtual time with a log, and returns its lines, each after the second in which it
// was written.
func in(t *testing.T, do func(l *Log)) (lines []string, logged []Key) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		began := time.Now()
		h := slog.NewTextHandler(&buf, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Duration("t", a.Value.Time().Sub(began))
			}
			return a
		}})
		l := New(slog.New(h), slog.LevelWarn, "jobs were refused", func(k Key) { logged = append(logged, k) })
		do(l)
		synctest.Wait()
		lines = strings.Split(strings.TrimSuffix(buf.String(), "\n"), "\n")
	})
	return lines, logged
}

func TestBursts(t *testing.T) {
	lines, logged := in(t, func(l *Log) {
		full := Key{Tenant: "acme", Route: "default", Kind: "queue-full"}
		for range 100 { // a burst of nearly ten seconds
			l.Add(full, 3)
			time.Sleep(99 * time.Millisecond)
		}
		time.Sleep(5 * time.Minute)
		l.Add(full, 1, "job", "J1") // another burst
		l.Add(full, 1, "job", "J2")
		time.Sleep(10 * time.Minute)
	})
	want := []string{
		`t=1s level=WARN msg="jobs were refused" tenant=acme route=default kind=queue-full count=33 within=1s`,
		`t=1m1s level=WARN msg="jobs were refused" tenant=acme route=default kind=queue-full count=267 within=59.911s`,
		`t=5m10.9s level=WARN msg="jobs were refused" tenant=acme route=default kind=queue-full count=2 within=1s job=J2`,
	}
	if diff := cmp.Diff(want, lines); diff != "" || len(logged) != 3 {
		t.Error(diff, logged)
	}
}

// A burst is logged a second after it began, also beside another one whose next line is due later.
func TestBurstsBesideOthers(t *testing.T) {
	lines, _ := in(t, func(l *Log) {
		l.Add(Key{Tenant: "first"}, 1)
		time.Sleep(5 * time.Second)
		l.Add(Key{Tenant: "second"}, 1)
		l.Add(Key{Tenant: "first"}, 1)
		time.Sleep(2 * time.Minute)
	})
	want := []string{
		`t=1s level=WARN msg="jobs were refused" tenant=first count=1 within=1s`,
		`t=6s level=WARN msg="jobs were refused" tenant=second count=1 within=1s`,
		`t=1m1s level=WARN msg="jobs were refused" tenant=first count=1 within=56s`,
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

func TestTenantsAreEncoded(t *testing.T) {
	lines, _ := in(t, func(l *Log) {
		l.Add(Key{Tenant: "a b\nlevel=ERROR secret"}, 1)
		l.Flush()
	})
	if len(lines) != 1 || strings.Contains(lines[0], "secret") || !strings.Contains(lines[0], " tenant=~") {
		t.Error(lines)
	}
}

// The largest bursts have lines of their own, the others are summed up. Memory and lines are
// bounded.
func TestManyBursts(t *testing.T) {
	lines, _ := in(t, func(l *Log) {
		for i := range maxKeys + 5 {
			l.Add(Key{Tenant: fmt.Sprintf("t%05d", i)}, int64(1+i%100))
		}
		l.mu.Lock()
		if len(l.bursts) > maxKeys {
			t.Errorf("%d bursts are kept", len(l.bursts))
		}
		l.mu.Unlock()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if len(l.bursts) != 0 || l.timer != nil {
			t.Errorf("%d bursts are kept", len(l.bursts))
		}
	})
	sum := 15 // of those that found no place
	for i := range maxKeys {
		sum += 1 + i%100
	}
	last := fmt.Sprintf(`t=1s level=WARN msg="jobs were refused (others, summed up)" bursts=%d count=%d`,
		maxKeys-maxLines, sum-maxLines*100)
	if len(lines) != maxLines+1 || !strings.Contains(lines[0], "count=100") || lines[maxLines] != last {
		t.Errorf("%d lines, the last is %s, want %s", len(lines), lines[len(lines)-1], last)
	}
}

// Flush logs what was not logged yet, and leaves nothing behind.
func TestFlush(t *testing.T) {
	lines, _ := in(t, func(l *Log) {
		l.Add(Key{Kind: "queue-full"}, 7)
		l.Flush()
		l.Flush()
		if l.timer != nil || len(l.bursts) != 0 {
			t.Error("something is left")
		}
	})
	want := []string{`t=0s level=WARN msg="jobs were refused" kind=queue-full count=7 within=0s`}
	if !cmp.Equal(want, lines) {
		t.Error(lines)
	}
	var none *Log
	none.Add(Key{}, 1)
	none.Flush()
}
