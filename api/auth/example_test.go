package auth_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/queue"
)

// A tenant gets an API key and sends a request with it. A wrong key is refused, although guests are
// accepted too.
func Example() {
	ctx := context.Background()
	q, err := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
	if err != nil {
		panic(err)
	}
	defer q.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := q.Keys()
	a, err := auth.New(ctx, auth.Config{Modes: []auth.Mode{auth.Keys, auth.Guest}, Keys: keys})
	if err != nil {
		panic(err)
	}

	secret := auth.NewSecret()
	key, err := keys.CreateKey(ctx, queue.Key{Tenant: "acme", Name: "ci", Hash: secret.Hash()})
	if err != nil {
		panic(err)
	}
	for _, credential := range []string{secret.Key(key.ID), auth.NewSecret().Key(key.ID), ""} {
		r := &http.Request{Header: http.Header{}, RemoteAddr: "192.0.2.7:4711"}
		if credential != "" {
			r.Header.Set("Authorization", "Bearer "+credential)
		}
		who, err := a.Authenticate(r)
		var refused *auth.Refusal
		if errors.As(err, &refused) {
			fmt.Println("refused:", refused)
			continue
		}
		fmt.Println(who.Tenant, err)
	}
	// Output:
	// acme <nil>
	// refused: the API key is unknown, revoked or expired
	// guest:192.0.2.7 <nil>
}
