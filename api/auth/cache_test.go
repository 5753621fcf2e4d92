package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

func bearer(key string) *http.Request { return request(somewhere, "Authorization: Bearer "+key) }

// A revocation holds within a second, and until then the store is asked once.
func TestKeysAreRememberedForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &ring{}
		id, key := store.add("acme", time.Time{})
		a := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
		check := func(want string, questions int) {
			t.Helper()
			if got := outcome(t, a, bearer(key)); got != want || store.questions() != questions {
				t.Errorf("%s after %d questions, want %s after %d", got, store.questions(), want, questions)
			}
		}
		check("acme", 1)
		store.revoke(id)
		<-time.After(keyAge - time.Nanosecond)
		check("acme", 1)
		<-time.After(time.Nanosecond)
		check("refused: key", 2)
		store.set(func(r *ring) { r.keys[id] = queue.Key{ID: id, Tenant: "acme", Hash: hashOf(t, key)} })
		<-time.After(keyAge - time.Nanosecond)
		check("refused: key", 2)
		<-time.After(time.Nanosecond)
		check("acme", 3)
	})
}

func hashOf(t *testing.T, key string) [32]byte {
	t.Helper()
	c, err := parseCredential(key)
	if err != nil {
		t.Fatal(err)
	}
	return Secret{c.key.secret}.Hash()
}

// A key ends at its instant, also where it is remembered.
func TestKeysExpireInTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &ring{}
		_, key := store.add("acme", time.Now().Add(500*time.Millisecond))
		a := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
		if got := outcome(t, a, bearer(key)); got != "acme" {
			t.Error(got)
		}
		<-time.After(500 * time.Millisecond)
		if got := outcome(t, a, bearer(key)); got != "refused: key" || store.questions() != 1 {
			t.Errorf("%s after %d questions", got, store.questions())
		}
	})
}

// An answer counts from before the question: one that was on its way for a second is not used by
// who comes later.
func TestASlowAnswerIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &ring{}
		id, key := store.add("acme", time.Time{})
		a := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
		hold := make(chan struct{})
		store.set(func(r *ring) { r.hold = hold })
		first := make(chan string)
		go func() { first <- outcome(t, a, bearer(key)) }()
		synctest.Wait()
		store.revoke(id)
		store.set(func(r *ring) { r.hold = nil })
		<-time.After(keyAge)
		if got := outcome(t, a, bearer(key)); got != "refused: key" || store.questions() != 2 {
			t.Errorf("%s after %d questions", got, store.questions())
		}
		close(hold)
		if got := <-first; got != "acme" { // it came before the revocation
			t.Error(got)
		}
		if got := outcome(t, a, bearer(key)); got != "refused: key" || store.questions() != 2 {
			t.Errorf("%s after %d questions: the old answer has hidden the new one", got, store.questions())
		}
	})
}

// Who comes while the question is under way waits for its answer, also when who asked it leaves.
func TestOneQuestionForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &ring{}
		_, key := store.add("acme", time.Time{})
		a := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
		hold := make(chan struct{})
		store.set(func(r *ring) { r.hold = hold })
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := a.Authenticate(bearer(key).WithContext(ctx))
			left <- err
		}()
		synctest.Wait()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if got := outcome(t, a, bearer(key)); got != "acme" {
					t.Error(got)
				}
			})
		}
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the one that left: %v", err)
		}
		close(hold)
		wg.Wait()
		if n := store.questions(); n != 1 {
			t.Errorf("%d questions", n)
		}
	})
}

// A store that is away is no refusal, and is asked again at once.
func TestStoreAway(t *testing.T) {
	store := &ring{}
	_, key := store.add("acme", time.Time{})
	a := gate(t, Config{Modes: []Mode{Keys, Guest}, Keys: store})
	store.set(func(r *ring) { r.failure = fmt.Errorf("%w: away", queue.ErrUnavailable) })
	r := bearer(key)
	if _, err := a.Authenticate(r); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if !a.Good(r) {
		t.Error("a request that was let in is cut off because the store is away")
	}
	store.set(func(r *ring) { r.failure = nil })
	if got := outcome(t, a, r); got != "acme" {
		t.Error(got)
	}
	if !a.Good(r) || a.Good(bearer(key+"x")) {
		t.Error("Good is not what Authenticate says")
	}
}

// A flood of ids that were never made fills no memory, pushes out no key, and what is malformed
// never reaches the store.
func TestFloodOfIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &ring{}
		_, key := store.add("acme", time.Time{})
		a := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
		if got := outcome(t, a, bearer(key)); got != "acme" {
			t.Error(got)
		}
		const flood = 3*cacheMost + 1
		secret := NewSecret()
		for i := range flood {
			if got := outcome(t, a, bearer(secret.Key(fmt.Sprintf("%027dv", i)))); got != "refused: key" {
				t.Fatal(got)
			}
		}
		if got := outcome(t, a, bearer(key)); got != "acme" || store.questions() != flood+1 {
			t.Errorf("%s after %d questions", got, store.questions())
		}
		c := a.keys
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := c.unknown.Len(); n > cacheMost || len(c.asked) != 0 {
			t.Errorf("%d ids are remembered, %d asked", n, len(c.asked))
		}
	})
}

// Many at once, with keys that come and go; for the race detector.
func TestCacheRaces(t *testing.T) {
	store := &ring{}
	var ids, keys []string
	for i := range 8 {
		id, key := store.add(fmt.Sprintf("t%d", i), time.Time{})
		ids, keys = append(ids, id), append(keys, key)
	}
	a := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 500 {
				k := (i + n) % len(keys)
				got, want := outcome(t, a, bearer(keys[k])), fmt.Sprintf("t%d", k)
				if got != want && got != "refused: key" {
					t.Errorf("%s, want %s", got, want)
				}
				if i == 0 && n == 250 {
					store.revoke(ids[7])
				}
			}
		})
	}
	wg.Wait()
}
