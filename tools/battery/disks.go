package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/repair"
)

// disks are the checks of the disk that Redis writes to.
func disks() []check {
	const what = "a power cut: the append-only file ends at a random byte that was not synced yet, appendfsync "
	const target = ", counts agree with queues, stamps τ* ≤ 1 µs"
	return []check{
		{
			id: "A1-always", what: what + "always",
			target: "lost 0 of what had 202" + target,
			quick:  scale{jobs: 2000, tenants: 20, kills: 3, window: 8 * time.Second},
			full:   scale{jobs: 10_000, tenants: 20, kills: 20, window: 60 * time.Second, limit: 4 * time.Minute},
			run:    powerCut("always", 0),
		},
		{
			id: "A1-everysec", what: what + "everysec",
			target: "lost only what had 202 in the last 2 s" + target,
			quick:  scale{jobs: 2000, tenants: 20, kills: 3, window: 8 * time.Second},
			full:   scale{jobs: 10_000, tenants: 20, kills: 20, window: 60 * time.Second, limit: 4 * time.Minute},
			run:    powerCut("everysec", 2*time.Second),
		},
		{
			id: "A2", what: "the disk of Redis is full, under load",
			target: "503 at once, lost 0, counts agree with queues, intake back ≤ 2 s after there is space",
			quick:  scale{jobs: 2000, tenants: 20, window: 3 * time.Second},
			full:   scale{jobs: 10_000, tenants: 20, window: 20 * time.Second, limit: 4 * time.Minute},
			run:    diskFull,
		},
	}
}

//go:embed preload/synced.c
var syncedSource []byte

// powerCut kills Redis, cuts its append-only file at a random byte behind the last sync, and starts
// it again. most is how old a lost write may be.
func powerCut(fsync string, most time.Duration) func(context.Context, *world, *findings) error {
	return func(ctx context.Context, w *world, f *findings) error {
		library, err := w.compile(ctx, "synced", syncedSource)
		if err != nil {
			return err
		}
		record := filepath.Join(w.dir, "synced")
		perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
		s := settings{
			fsync: fsync, defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant*2))},
			redisEnv: []string{"LD_PRELOAD=" + library, "SLUICE_BATTERY_SYNCED=" + record},
		}
		if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
			return err
		}
		w.sink.set(slowly(5*time.Millisecond, 100*time.Millisecond))
		wait := w.background(ctx, load{
			name: "a1", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
			insist: true, clients: 64,
		})
		var cuts []instant
		var found []string
		bytesLost, torn := 0.0, 0.0
		for range w.scale.kills {
			mean := w.scale.window / time.Duration(w.scale.kills+1)
			if err := pause(ctx, w.between(mean/2, mean)); err != nil {
				return err
			}
			w.redis.kill()
			cuts = append(cuts, w.ledger.now())
			lost, whole, err := w.cutFile(record)
			if err != nil {
				return err
			}
			bytesLost += float64(lost)
			if !whole {
				torn++
			}
			if err := w.startRedis(ctx); err != nil {
				return err
			}
			defects, err := w.defects(ctx)
			if err != nil {
				return err
			}
			found = append(found, defects...)
		}
		if err := wait(); err != nil {
			return err
		}
		f.info("cuts", float64(len(cuts)), "")
		f.info("bytes cut off", bytesLost, "")
		f.info("cuts within a write", torn, "")
		if err := w.lostWrites(ctx, f, cuts, most); err != nil {
			return err
		}
		defects, err := w.defects(ctx)
		f.none("defects of the store", append(found, defects...))
		return err
	}
}

// cutFile cuts the append-only file at a random byte behind the last sync. whole is whether it then
// ends with a whole command.
func (w *world) cutFile(record string) (lost int64, whole bool, err error) {
	text, err := os.ReadFile(record)
	if err != nil {
		return 0, false, fmt.Errorf("redis-server has synced nothing: %w", err)
	}
	var synced int64
	var of string
	if _, err := fmt.Sscanf(string(text), "%d %s", &synced, &of); err != nil {
		return 0, false, fmt.Errorf("read what is synced: %w", err)
	}
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(of), "*.incr.aof"))
	if err != nil {
		return 0, false, err
	}
	path := slices.MaxFunc(paths, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	if path != of {
		synced = 0 // it was begun for a rewrite, and nothing of it is synced yet
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, false, err
	}
	if info.Size() < synced {
		return 0, false, fmt.Errorf("%s has %d bytes, though %d are synced", path, info.Size(), synced)
	}
	at := synced + w.rng.Int64N(info.Size()-synced+1)
	if err := os.Truncate(path, at); err != nil {
		return 0, false, err
	}
	rest, err := os.ReadFile(path)
	return info.Size() - at, bytes.HasSuffix(rest, []byte("\r\n$4\r\nEXEC\r\n")), err
}

// lostWrites drains the queue and checks that nothing with a 202 is lost but what was answered less
// than most before a cut.
func (w *world) lostWrites(ctx context.Context, f *findings, cuts []instant, most time.Duration) error {
	if err := w.drain(ctx); err != nil {
		return err
	}
	stored, err := w.stored(ctx)
	if err != nil {
		return err
	}
	requests, _ := w.ledger.entries()
	owners := map[string]string{}
	var lost, old []string
	for _, r := range requests {
		if r.Outcome != acknowledged {
			continue
		}
		if stored[r.Job] {
			owners[r.Job] = r.Tenant
			continue
		}
		text := fmt.Sprintf("job %s, answered at %v, cuts at %v", r.Job, time.Duration(r.Answered), cuts)
		lost = append(lost, text)
		young := func(cut instant) bool { return r.Answered <= cut && cut.since(r.Answered) <= most }
		if !slices.ContainsFunc(cuts, young) {
			old = append(old, text)
		}
	}
	f.info("jobs", float64(len(stored)), "")
	if most > 0 {
		f.info("lost", float64(len(lost)), "")
		f.none(fmt.Sprintf("lost that were answered more than %v before", most), old)
	} else {
		f.none("lost", lost)
	}
	e := ended{}
	if e.jobs, err = w.read(ctx, owners); err != nil {
		return err
	}
	e.succeeded(f)
	e.stamps(w, f)
	return nil
}

// defects returns what a check of the store finds.
func (w *world) defects(ctx context.Context) (found []string, err error) {
	path, err := w.configure("check")
	if err != nil {
		return nil, err
	}
	out, failed := exec.CommandContext(ctx, w.bin, "check", "--json", "--config", path).Output()
	var report struct{ Examples []repair.Finding }
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("sluice check: %w: %w", failed, err)
	}
	for _, e := range report.Examples {
		found = append(found, fmt.Sprintf("%s of %s: %s", e.Kind, e.Name, e.Detail))
	}
	return found, nil
}

// diskFull fills the file system that Redis writes to, and frees it again.
func diskFull(ctx context.Context, w *world, f *findings) error {
	w.data = filepath.Join(w.dir, "data")
	if err := os.Mkdir(w.data, 0o700); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "mount", "-t", "tmpfs", "-o", "size=128m", "sluice-battery", w.data).
		CombinedOutput(); err != nil {
		return fmt.Errorf("%w: only root can mount a small file system: %w %s",
			errSkipped, err, bytes.TrimSpace(out))
	}
	defer func() { _ = exec.Command("umount", "-l", w.data).Run() }() // Redis still has files there
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	s := settings{defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant*2))}}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	loading, stop := context.WithCancel(ctx)
	defer stop()
	wait := w.background(loading, load{
		name: "a2", jobs: w.scale.jobs, over: 3 * w.scale.window, tenants: spread("tenant", w.scale.tenants),
		insist: true, clients: 64,
	})
	if err := pause(ctx, w.scale.window); err != nil {
		return err
	}
	ballast := filepath.Join(w.data, "ballast")
	w.say("filling the disk")
	if err := fill(ballast); err != nil {
		return err
	}
	full := w.ledger.now()
	if err := until(ctx, "the intake is refused", 5*time.Millisecond, func() (bool, error) {
		requests, _ := w.ledger.entries()
		return requests[len(requests)-1].Status == http.StatusServiceUnavailable, nil
	}); err != nil {
		return err
	}
	refusing := w.ledger.now()
	if err := pause(ctx, w.scale.window); err != nil {
		return err
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	freed := w.ledger.now()
	if err := wait(); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.stamps(w, f)
	f.info("refused after", ms(refusing.since(full)), "ms")
	w.refusals(f, refusing, freed)
	f.info("duplicates", float64(len(e.Duplicates)), "")
	f.atMost("intake back", w.intakeBack(freed, nil).Seconds(), 2, "s")
	f.timed()
	defects, err := w.defects(ctx)
	f.none("defects of the store", defects)
	return err
}

// refusals checks that every request between the two instants got a 503, and soon.
func (w *world) refusals(f *findings, from, to instant) {
	var others float64
	var waits []time.Duration
	requests, _ := w.ledger.entries()
	for _, r := range requests {
		switch {
		case r.Sent < from || r.Answered > to:
		case r.Status != http.StatusServiceUnavailable:
			others++
		default:
			waits = append(waits, r.Answered.since(r.Sent))
		}
	}
	f.atLeast("503s", float64(len(waits)), 1, "")
	f.atMost("other answers", others, 0, "")
	f.atMost("99 % of the 503s within", quantile(waits, 0.99).Seconds(), 0.5, "s")
	f.timed()
}

// fill writes a file until its file system has no space.
func fill(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	for piece := make([]byte, 1<<20); ; {
		if _, err := file.Write(piece); err == nil {
			continue
		} else if !strings.Contains(err.Error(), "no space left") {
			return errors.Join(err, file.Close())
		}
		if len(piece) == 1 {
			return file.Close()
		}
		piece = piece[:max(1, len(piece)/16)]
	}
}
