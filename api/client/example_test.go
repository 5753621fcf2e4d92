package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
)

// A refusal is an *Error, which says when to retry. The server here always refuses.
func ExampleClient_Submit() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = fmt.Fprint(w, `{"type":"urn:sluice:problem:queue-full",`+
			`"title":"The queue is full","status":429}`)
	}))
	defer server.Close()
	c, err := client.New(server.URL, "", server.Client())
	if err != nil {
		panic(err)
	}
	_, err = c.Submit(context.Background(), client.Submission{
		Tenant: "acme", Submission: wire.Submission{Type: "order.create", Payload: []byte(`{"sku":1}`)},
	})
	var refused *client.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Kind(), "retry after", refused.RetryAfter)
	}
	// Output: queue-full retry after 2s
}

// The transport has the settings of TLS: an authority of your own, and the certificate of the
// client if the server asks for one.
func ExampleNew_tls() {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	authorities := x509.NewCertPool() // of a file: AppendCertsFromPEM
	authorities.AddCert(server.Certificate())
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{
		RootCAs:      authorities,
		Certificates: nil, // of files: tls.LoadX509KeyPair
	}
	defer transport.CloseIdleConnections()
	c, err := client.New(server.URL, "", &http.Client{Transport: transport})
	if err != nil {
		panic(err)
	}
	fmt.Println(c.Ready(context.Background()))
	// Output: <nil>
}
