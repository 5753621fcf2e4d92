package listen_test

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/listen"
)

// A server with at most 1,000 connections, 100 of them by one address. When it is full, new
// connections replace idle ones, and a reserved connection is for probes alone.
func Example() {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	l := listen.Bound(socket, "intake", listen.Bounds{Connections: 1000, PerAddress: 100})
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(l)

	server := listen.Server("", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if listen.Reserved(r.Context()) && r.URL.Path != "/livez" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}), nil)
	l.Attend(server)
	go func() { _ = server.Serve(l) }()

	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		panic(err)
	}
	_ = resp.Body.Close()
	fmt.Println(resp.Status, "open connections:", l.Open())
	fmt.Println(server.Shutdown(context.Background()))
	// Output:
	// 200 OK open connections: 1
	// <nil>
}
