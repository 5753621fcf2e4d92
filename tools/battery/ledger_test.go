package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestLedgerKeepsEverything(t *testing.T) {
	l := newLedger()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 100 {
				l.request(request{Key: fmt.Sprint(i, "-", k)})
				l.delivery(delivery{Job: fmt.Sprint(i, "-", k)})
				l.entries()
			}
		})
	}
	wg.Wait()
	requests, deliveries := l.entries()
	keys, jobs := map[string]bool{}, map[string]bool{}
	for _, r := range requests {
		keys[r.Key] = true
	}
	for _, d := range deliveries {
		jobs[d.Job] = true
	}
	if len(requests) != 800 || len(deliveries) != 800 || len(keys) != 800 || len(jobs) != 800 {
		t.Error(len(requests), len(deliveries), len(keys), len(jobs))
	}
	if n := len(l.delivered(790)); n != 10 {
		t.Errorf("%d deliveries from the 790th on", n)
	}
	if n := len(l.delivered(900)); n != 0 {
		t.Errorf("%d deliveries past the end", n)
	}
}

// TestEntriesAreNotOverwritten: later entries do not overwrite those that were read.
func TestEntriesAreNotOverwritten(t *testing.T) {
	l := newLedger()
	for i := range 5 {
		l.delivery(delivery{Attempt: i})
	}
	_, before := l.entries()
	_ = append(before, delivery{Attempt: 99})
	l.delivery(delivery{Attempt: 5})
	if _, all := l.entries(); all[5].Attempt != 5 || len(before) != 5 {
		t.Errorf("%v", all)
	}
}

func TestLedgerIsWritten(t *testing.T) {
	l := newLedger()
	l.request(request{Key: "k", Outcome: unknown, Sent: 1, Answered: 2})
	l.delivery(delivery{At: 3, Job: "j", Status: 200})
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	if err := l.write(path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	var r request
	var d delivery
	in.Scan()
	if err := json.Unmarshal(in.Bytes(), &r); err != nil || r.Key != "k" || r.Answered != 2 {
		t.Error(r, err)
	}
	in.Scan()
	if err := json.Unmarshal(in.Bytes(), &d); err != nil || d.Job != "j" || d.At != 3 {
		t.Error(d, err)
	}
}

func TestInstantOfAWallClockTime(t *testing.T) {
	l := newLedger()
	stamp := l.start.Round(0).Add(1500 * time.Microsecond).UTC()
	if got := l.instantOf(stamp); got != instant(1500*time.Microsecond) {
		t.Error(got)
	}
}
