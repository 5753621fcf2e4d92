package main

import (
	"net"
	"net/http"
	"time"
)

// sink is an upstream that answers 200 to everything.
type sink struct {
	url    string
	server *http.Server
}

func newSink() (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{url: "http://" + l.Addr().String(), server: &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: 5 * time.Second,
	}}
	go func() { _ = s.server.Serve(l) }() // ends with close
	return s, nil
}

func (s *sink) close() { _ = s.server.Close() }
