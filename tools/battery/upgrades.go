package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// upgrades are the checks of different versions on one store.
func upgrades() []check {
	return []check{
		{
			id: "U1",
			what: "rolling: each process replaced by a new one, under load; then a store that is too new " +
				"for it",
			target: "lost 0, delivered twice 0, clean ends; refuses, naming the versions",
			quick:  scale{jobs: 2000, tenants: 20, rounds: 4, window: 6 * time.Second},
			full:   scale{jobs: 10_000, tenants: 20, rounds: 12, window: 30 * time.Second, limit: 3 * time.Minute},
			run:    rolling,
		},
	}
}

// rolling replaces workers, and every other time the api, as a deployment does: a new worker is
// started and an old one asked to end; an api process leaves its address first.
func rolling(ctx context.Context, w *world, f *findings) error {
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	s := settings{defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant)+2)}}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	w.sink.set(slowly(5*time.Millisecond, 200*time.Millisecond))
	wait := w.background(ctx, load{
		name: "u1", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
		insist: true,
	})
	for i := range w.scale.rounds {
		mean := w.scale.window / time.Duration(w.scale.rounds+1)
		if err := pause(ctx, w.between(mean/4, mean/2)); err != nil {
			return err
		}
		w.say("round %d of %d", i+1, w.scale.rounds)
		if _, err := w.start(ctx, "worker"); err != nil {
			return err
		}
		if err := w.end(ctx, w.living("worker")[0]); err != nil {
			return err
		}
		if i%2 == 1 {
			if err := w.replaceAPI(ctx); err != nil {
				return err
			}
		}
	}
	if err := wait(); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.twice(f)
	f.info("processes replaced", float64(w.scale.rounds+w.scale.rounds/2), "")
	return w.tooNew(ctx, f)
}

// end asks a process to end, which must do so with 0.
func (w *world) end(ctx context.Context, s *sluice) error {
	s.signal(syscall.SIGTERM)
	code, err := s.wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with %d: %s", s.name, code, s.tail())
	}
	return err
}

// replaceAPI puts a new api process in the place of the one that runs.
func (w *world) replaceAPI(ctx context.Context) error {
	if err := w.end(ctx, w.living("api")[0]); err != nil {
		return err
	}
	_, err := w.start(ctx, "api")
	return err
}

// tooNew raises the schema of the store, as a future version does, and starts this one on it.
func (w *world) tooNew(ctx context.Context, f *findings) error {
	const meta = "sluice:meta"
	known, err := w.store.HGet(ctx, meta, "schema").Int()
	if err != nil {
		return err
	}
	if err := w.store.HSet(ctx, meta, "schema", known+1).Err(); err != nil {
		return err
	}
	for _, s := range w.living("") {
		s.kill() // the api has the address that the next one wants
	}
	var bad []string
	for _, role := range []string{"api", "worker"} {
		message, err := w.refusal(ctx, w.bin, role)
		if err != nil {
			return err
		}
		for _, words := range []string{
			fmt.Sprintf("schema %d", known+1), fmt.Sprintf("to %d", known), "another version",
		} {
			if !strings.Contains(message, words) {
				bad = append(bad, fmt.Sprintf("%s: not %q, but: %s", role, words, message))
			}
		}
	}
	f.none("starts on a store that is too new", bad)
	return nil
}

// refusal starts the program and returns its output if it fails at once; empty if it became ready.
func (w *world) refusal(ctx context.Context, bin, role string) (message string, err error) {
	before := w.bin
	w.bin = bin
	defer func() { w.bin = before }()
	s, err := w.launch(role)
	if err != nil {
		return err.Error(), nil // "… ended at start: " and its last words
	}
	switch err := w.ready(ctx, s); {
	case err == nil:
		return "", nil
	case s.alive():
		return "", err // neither ready nor ended
	}
	if s.cmd.ProcessState.ExitCode() == 0 {
		return "", fmt.Errorf("%s ended with 0 instead of serving: %s", s.name, s.tail())
	}
	return s.tail(), nil
}
