package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"time"

	"github.com/7509e464/sluice/worker"
)

// Arguments that make a process of the bench the floor, or one that watches for stalls.
const floorChild, stallsChild = "child-floor", "child-stalls"

// floor measures the machine without a queue: a thread sleeps until each instant of a grid and then
// starts a goroutine.
type floor struct {
	URL      string        `json:"url"` // where the goroutine posts the payload; empty: it only records its lateness
	Jobs     int           `json:"jobs"`
	Interval time.Duration `json:"interval_ns"`
}

var (
	floorReady = regexp.MustCompile(`(?m)^ready`)
	floorDone  = regexp.MustCompile(`(?m)^done (.*)$`)
)

// pace runs the floor in a process of its own and returns the lateness of its goroutines when all
// have ended.
func (f floor) pace(ctx context.Context) (late lateRun, err error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return late, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	orders, err := json.Marshal(f)
	if err != nil {
		return late, err
	}
	c, err := self(dir, "floor", floorChild, orders)
	if err != nil {
		return late, err
	}
	defer c.end()
	if _, err := c.awaitLine(ctx, floorReady); err != nil {
		return late, err
	}
	if _, err := fmt.Fprintln(c.stdin, "go"); err != nil {
		return late, err
	}
	if err := pass(ctx, time.Duration(f.Jobs)*f.Interval); err != nil {
		return late, err
	}
	done, err := c.awaitLine(ctx, floorDone)
	if err != nil {
		return late, err
	}
	err = json.Unmarshal([]byte(done[0]), &late)
	return late, err
}

// runFloor is the process.
func runFloor(orders string) error {
	var f floor
	if err := json.Unmarshal([]byte(orders), &f); err != nil {
		return err
	}
	if err := awaitGo(); err != nil {
		return err
	}
	worker.ShortenSlices() // as serve does
	sharpen()
	var answered sync.WaitGroup
	failed := make(chan error, f.Jobs)
	late := make([]time.Duration, f.Jobs)
	start := time.Now().Add(20 * time.Millisecond)
	for i := range f.Jobs {
		due := start.Add(time.Duration(i) * f.Interval)
		nap(due)
		answered.Go(func() {
			late[i] = time.Since(due)
			if f.URL == "" {
				return
			}
			if err := post(http.DefaultClient, f.URL); err != nil {
				failed <- err
			}
		})
	}
	answered.Wait()
	select {
	case err := <-failed:
		return err
	default:
		text, err := json.Marshal(lateOf(late))
		fmt.Printf("done %s\n", text)
		return err
	}
}

// awaitGo reports that the child is ready and waits for the signal to begin.
func awaitGo() error {
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// post sends the payload as a delivery is sent.
func post(hc *http.Client, url string) error {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(payload))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("POST %s: %s", url, resp.Status)
	}
	return err
}

// stalls are the sleeps of a thread that took over two milliseconds too long, of repeated sleeps of
// a millisecond. With many of them, figures of time say little about Sluice.
type stalls struct {
	N       int
	Longest time.Duration // of all sleeps, counted or not
}

// watchStalls watches in a process of its own until stop is called, which returns the stalls. In
// this process the sleeping thread would hold a processor of the runtime that the measurement
// needs.
func watchStalls() (stop func() (stalls, error), err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, stallsChild, "{}")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	end, err := cmd.StdinPipe() // closed at the latest when the bench ends
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() (s stalls, err error) {
		if err := errors.Join(end.Close(), cmd.Wait()); err != nil {
			return s, fmt.Errorf("watch for stalls: %w", err)
		}
		return s, json.Unmarshal(out.Bytes(), &s)
	}, nil
}

// runStalls is the process. It ends with its input.
func runStalls() error {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	sharpen()
	var s stalls
	for {
		select {
		case <-ended:
			return json.NewEncoder(os.Stdout).Encode(s)
		default:
		}
		due := time.Now().Add(time.Millisecond)
		nap(due)
		late := time.Since(due)
		s.Longest = max(s.Longest, late)
		if late > 2*time.Millisecond {
			s.N++
		}
	}
}
