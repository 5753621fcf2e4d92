package queue_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/7509e464/sluice/queue"
)

// A key is created, found by its id and revoked. The store holds the digest of the secret alone.
// auth.NewSecret draws a secret, and an auth.Authenticator checks the keys of requests.
func ExampleQueue_Keys() {
	ctx := context.Background()
	q, err := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
	if err != nil {
		panic(err)
	}
	defer q.Close()
	keys := q.Keys()

	digest := sha256.Sum256([]byte("a secret of 256 random bits"))
	key, err := keys.CreateKey(ctx, queue.Key{Tenant: "acme", Name: "ci", Hash: digest, Expires: time.Now().Add(24 * time.Hour)})
	if err != nil {
		panic(err)
	}
	found, err := keys.FindKey(ctx, key.ID)
	fmt.Println(found.Tenant, found.Name, found.Hash == digest, found.Expired(time.Now()), err)

	if err := keys.RevokeKey(ctx, "acme", key.ID); err != nil {
		panic(err)
	}
	_, err = keys.FindKey(ctx, key.ID)
	fmt.Println(errors.Is(err, queue.ErrUnknownKey))
	// Output:
	// acme ci true false <nil>
	// true
}
