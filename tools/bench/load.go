package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is a closed loop of requests over kept connections: each sends the next one when the last is
// answered. It uses bare connections, so that the client takes little of the machine.
type load struct {
	addr        string
	path        string
	body        []byte
	header      string // further lines, each with its end
	connections int
	want        string      // the status that counts, for example "202"
	tls         *tls.Config // nil: plain HTTP
}

// answered counts the answered requests, in total and in the measured time.
type answered struct{ all, measured int64 }

// run sends requests for the duration after a warm-up.
func (l load) run(
	ctx context.Context, warm, measured time.Duration,
) (n answered, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, warm+measured+10*time.Second)
	defer cancel()
	request := []byte(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n%s\r\n%s", l.path, l.addr, len(l.body), l.header, l.body))
	var answered atomic.Int64
	var stop atomic.Bool
	var clients sync.WaitGroup
	failed := make(chan error, l.connections)
	for range l.connections {
		clients.Go(func() {
			if err := l.client(ctx, request, &answered, &stop); err != nil {
				failed <- err
			}
		})
	}
	wait := func(d time.Duration) error {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
	err = wait(warm)
	before, start := answered.Load(), time.Now()
	if err == nil {
		err = wait(measured)
	}
	n.measured, took = answered.Load()-before, time.Since(start)
	stop.Store(true)
	clients.Wait()
	n.all = answered.Load()
	return n, took, err
}

func (l load) client(ctx context.Context, request []byte, answered *atomic.Int64, stop *atomic.Bool) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if l.tls != nil {
		conn = tls.Client(conn, l.tls)
	}
	r := bufio.NewReaderSize(conn, 4096)
	for !stop.Load() {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		status, err := readAnswer(r)
		if err != nil {
			return err
		}
		if string(status) != l.want {
			return fmt.Errorf("%s answered %s, want %s", l.path, status, l.want)
		}
		answered.Add(1)
	}
	return nil
}

var contentLength = []byte("content-length:")

// readAnswer reads one answer with a Content-Length and returns its status.
func readAnswer(r *bufio.Reader) (status string, err error) {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		switch {
		case first:
			fields := bytes.Fields(line)
			if len(fields) < 2 {
				return "", errors.New("not an HTTP answer")
			}
			status = string(fields[1])
		case len(line) <= 2:
			if length < 0 {
				return "", errors.New("an answer without Content-Length")
			}
			_, err := io.CopyN(io.Discard, r, int64(length))
			return status, err
		case len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength):
			if length, err = strconv.Atoi(strings.TrimSpace(string(line[len(contentLength):]))); err != nil {
				return "", fmt.Errorf("Content-Length: %w", err)
			}
		}
	}
}
