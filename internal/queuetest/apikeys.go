package queuetest

import (
	"crypto/sha256"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/sessions"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

var keyTests = map[string]func(*suite){
	"a key is found by its id":                           keyFound,
	"keys are listed without their hashes":               keysListed,
	"a revoked key is gone":                              keyRevoked,
	"a key of another tenant cannot be revoked":          keyOfAnother,
	"an id that no key has is unknown":                   keyUnknown,
	"a tenant has at most 100 keys, also at once":        keyBound,
	"an expired key does not count and is deleted later": keyExpired,
	"a key keeps its rights and its last use":            keyRights,
	"tokens are revoked by tenant and subject":           tokensRevoked,
	"callbacks have secrets and endpoints by tenant":     callbacksStored,
	"a tenant has at most two secrets, also at once":     callbackSecretBound,
	"a key outlives its tenant's jobs":                   keyOutlives,
	"a session holds until its end or is ended":          sessionsEnd,
	"operators are stored, listed and revoked":           operatorsStored,
	"names of operators are unique, also at once":        operatorNames,
	"there are at most 1,000 operators":                  operatorBound,
}

// sessionsEnd: a session of an operator has an end, and can be ended before.
func sessionsEnd(s *suite) {
	one, other := sha256.Sum256([]byte("one")), sha256.Sum256([]byte("other"))
	left := func(id [sha256.Size]byte) time.Duration {
		found, err := sessions.New(store.Of(s.q)).FindSession(s.ctx, id)
		if err != nil {
			s.Fatal(err)
		}
		if found.Name != "" && (found.ID != id || found.Role != operators.Viewer) {
			s.Errorf("found %+v", found)
		}
		return max(0, time.Until(found.Until))
	}
	past := sha256.Sum256([]byte("past"))
	for id, life := range map[[sha256.Size]byte]time.Duration{one: time.Hour, other: time.Hour, past: -time.Second} {
		if err := sessions.New(store.Of(s.q)).SaveSession(s.ctx, sessions.Session{
			ID: id, Page: make([]byte, sha256.Size), Name: "vera", Role: operators.Viewer, Until: time.Now().Add(life),
		}); err != nil {
			s.Fatal(err)
		}
	}
	if all, err := sessions.New(store.Of(s.q)).ListSessions(s.ctx); err != nil || len(all) != 2 {
		s.Errorf("sessions %+v, %v", all, err)
	}
	if d := left(one); d > time.Hour || d < 59*time.Minute {
		s.Errorf("%v are left", d)
	}
	if err := sessions.New(store.Of(s.q)).EndSession(s.ctx, one); err != nil {
		s.Fatal(err)
	}
	if left(one) != 0 || left(other) == 0 || left(sha256.Sum256(nil))+left(past) != 0 {
		s.Errorf("after the end: %v, another: %v", left(one), left(other))
	}
}

func (s *suite) key(tenant, name string, expires time.Time) queue.Key {
	s.Helper()
	k, err := s.q.Keys().CreateKey(s.ctx, queue.Key{Tenant: tenant, Name: name, Hash: sha256.Sum256([]byte(name)), Expires: expires})
	if err != nil {
		s.Fatalf("CreateKey: %v", err)
	}
	return k
}

func (s *suite) keys(tenant string) []queue.Key {
	s.Helper()
	keys, err := s.q.Keys().ListKeys(s.ctx, tenant)
	if err != nil {
		s.Fatalf("Keys: %v", err)
	}
	return keys
}

func keyFound(s *suite) {
	s.restart(func(o *queue.Options) {}) // a key is what Redis has, not this process
	for _, owner := range []string{tenant, "member:a b", "}{:*", strings.Repeat("x", 255)} {
		ends := time.Now().Add(time.Hour)
		for _, expires := range []time.Time{{}, ends} {
			made := s.key(owner, "ci é", expires)
			got, err := s.q.Keys().FindKey(s.ctx, made.ID)
			if err != nil || got != made {
				s.Errorf("FindKey: %+v, %v, want %+v", got, err, made)
			}
			if made.Tenant != owner || made.Name != "ci é" || made.Hash != sha256.Sum256([]byte("ci é")) ||
				time.Since(made.Created) > limit {
				s.Errorf("made %+v", made)
			}
			if !expires.IsZero() && !made.Expires.Equal(ends.Truncate(time.Millisecond)) ||
				made.Expired(ends.Add(-time.Second)) ||
				made.Expired(ends) == expires.IsZero() {
				s.Errorf("expires %v, want %v", made.Expires, expires)
			}
		}
	}
}

func keysListed(s *suite) {
	first, second := s.key(tenant, "first", time.Time{}), s.key(tenant, "second", time.Now().Add(time.Hour))
	s.key("other", "third", time.Time{})
	first.Hash, second.Hash = [sha256.Size]byte{}, [sha256.Size]byte{}
	want := []queue.Key{first, second}
	slices.SortFunc(want, func(a, b queue.Key) int { return strings.Compare(a.ID, b.ID) })
	if got := s.keys(tenant); !slices.Equal(got, want) {
		s.Errorf("Keys: %+v, want %+v", got, want)
	}
	if got := s.keys("nobody"); len(got) != 0 {
		s.Errorf("Keys of nobody: %+v", got)
	}
}

// keyRights: what a key may do and when it was used is stored; a later use stays, and a use brings
// no revoked key back.
func keyRights(s *suite) {
	rights := &queue.Rights{
		Scopes: []queue.Scope{queue.ScopeSubmit}, Routes: []string{"a b", "é"}, Types: []string{"t 1"},
		Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")},
	}
	k, err := s.q.Keys().CreateKey(s.ctx, queue.Key{Tenant: tenant, Rights: rights})
	if err != nil {
		s.Fatal(err)
	}
	gone, other := s.key(tenant, "gone", time.Time{}), s.key("other", "", time.Time{})
	if err := s.q.Keys().RevokeKey(s.ctx, tenant, gone.ID); err != nil {
		s.Fatal(err)
	}
	at := time.Now().UTC().Truncate(time.Millisecond)
	for _, uses := range [][]queue.Use{
		{{ID: k.ID, At: at}, {ID: gone.ID, At: at}, {ID: other.ID, At: at}},
		{{ID: k.ID, At: at.Add(-time.Minute)}, {ID: "no id", At: at}},
	} {
		if err := s.q.Keys().Used(s.ctx, uses); err != nil {
			s.Error(err)
		}
	}
	got, err := s.q.Keys().FindKey(s.ctx, k.ID)
	if err != nil || !reflect.DeepEqual(got.Rights, rights) || !got.Used.Equal(at) {
		s.Errorf("%+v, %v", got, err)
	}
	if got, err = s.q.Keys().FindKey(s.ctx, other.ID); err != nil || got.Rights != nil || !got.Used.Equal(at) {
		s.Errorf("a key with the default rights: %+v, %v", got, err)
	}
	if list := s.keys(tenant); len(list) != 1 || !list[0].Used.Equal(at) {
		s.Errorf("%+v", list)
	}
	if _, err := s.q.Keys().FindKey(s.ctx, gone.ID); !errors.Is(err, queue.ErrUnknownKey) {
		s.Errorf("a use brings a revoked key back: %v", err)
	}
}

// tokensRevoked: an instant is stored for a tenant and for a subject, never an earlier one later,
// and read again only after a change.
func tokensRevoked(s *suite) {
	tokens, at := s.q.Tokens(), time.Now().UTC().Truncate(time.Millisecond)
	read := func(known string) (string, queue.NotBefore) {
		s.Helper()
		revision, list, err := tokens.NotBefore(s.ctx, known)
		if err != nil {
			s.Fatal(err)
		}
		return revision, list
	}
	first, list := read("")
	if list == nil || len(list) != 0 {
		s.Errorf("at first: %v", list)
	}
	for _, r := range []struct {
		tenant, subject string
		at, want        time.Time
	}{
		{"member:a", "", at, at}, {"member:a", "", at.Add(-time.Hour), at}, {"org:b", "u 1", at, at},
		{"org:b", "u 1", at.Add(time.Second), at.Add(time.Second)},
	} {
		if got, err := tokens.RevokeTokens(s.ctx, r.tenant, r.subject, r.at); err != nil || !got.Equal(r.want) {
			s.Errorf("%+v: %v, %v", r, got, err)
		}
	}
	second, list := read(first)
	if second == first || !list.Of("member:a", "x").Equal(at) || !list.Of("org:b", "u 1").Equal(at.Add(time.Second)) ||
		!list.Of("org:b", "u 2").IsZero() || !list.Of("member", "").IsZero() {
		s.Errorf("%v", list)
	}
	if again, list := read(second); again != second || list != nil {
		s.Errorf("without a change: %q, %v", again, list)
	}
}

func keyRevoked(s *suite) {
	gone, left := s.key(tenant, "gone", time.Time{}), s.key(tenant, "left", time.Time{})
	if err := s.q.Keys().RevokeKey(s.ctx, tenant, gone.ID); err != nil {
		s.Fatalf("RevokeKey: %v", err)
	}
	if _, err := s.q.Keys().FindKey(s.ctx, gone.ID); !errors.Is(err, queue.ErrUnknownKey) {
		s.Errorf("FindKey of a revoked key: %v", err)
	}
	if err := s.q.Keys().RevokeKey(s.ctx, tenant, gone.ID); !errors.Is(err,
		queue.ErrUnknownKey) {
		s.Errorf("RevokeKey again: %v", err)
	}
	if got := s.keys(tenant); len(got) != 1 || got[0].ID != left.ID {
		s.Errorf("Keys: %+v, want %s alone", got, left.ID)
	}
}

func keyOfAnother(s *suite) {
	k := s.key(tenant, "k", time.Time{})
	if err := s.q.Keys().RevokeKey(s.ctx, "other", k.ID); !errors.Is(err,
		queue.ErrUnknownKey) {
		s.Errorf("RevokeKey by another tenant: %v", err)
	}
	if got, err := s.q.Keys().FindKey(s.ctx, k.ID); err != nil || got != k {
		s.Errorf("FindKey: %+v, %v", got, err)
	}
}

func keyUnknown(s *suite) {
	job := s.admit(work())
	for _, id := range []string{
		"", "x", "{0}", "../key", strings.Repeat("0", 27), strings.Repeat("0", 28), strings.Repeat("v", 28),
		job.ID,
	} {
		if _, err := s.q.Keys().FindKey(s.ctx, id); !errors.Is(err, queue.ErrUnknownKey) {
			s.Errorf("FindKey(%q): %v", id, err)
		}
		if err := s.q.Keys().RevokeKey(s.ctx, tenant, id); !errors.Is(err, queue.ErrUnknownKey) {
			s.Errorf("RevokeKey(%q): %v", id, err)
		}
	}
}

func keyBound(s *suite) {
	for range queue.MaxKeys - 2 {
		s.key(tenant, "k", time.Time{})
	}
	var wg sync.WaitGroup
	made := make(chan error, 8)
	for range cap(made) {
		wg.Go(func() {
			_, err := s.q.Keys().CreateKey(s.ctx, queue.Key{Tenant: tenant, Name: "more"})
			made <- err
		})
	}
	wg.Wait()
	close(made)
	taken := 0
	for err := range made {
		switch {
		case err == nil:
			taken++
		case !errors.Is(err, queue.ErrTooManyKeys):
			s.Errorf("CreateKey beyond the bound: %v", err)
		}
	}
	keys := s.keys(tenant)
	if taken > 2 || len(keys) != queue.MaxKeys-2+taken {
		s.Errorf("%d more keys were made, %d are there", taken, len(keys))
	}
	for len(keys) < queue.MaxKeys { // those that met each other at the bound all stepped back
		s.key(tenant, "again", time.Time{})
		keys = s.keys(tenant)
	}
	if _, err := s.q.Keys().
		CreateKey(s.ctx, queue.Key{Tenant: tenant, Name: "more"}); !errors.Is(err,
		queue.ErrTooManyKeys) {
		s.Errorf("CreateKey at the bound: %v", err)
	}
	if err := s.q.Keys().RevokeKey(s.ctx, tenant, keys[0].ID); err != nil {
		s.Fatalf("RevokeKey: %v", err)
	}
	s.key(tenant, "again", time.Time{})
	s.key("other", "its own bound", time.Time{})
}

func keyExpired(s *suite) {
	recent := s.key(tenant, "an hour ago", time.Now().Add(-time.Hour))
	long := s.key(tenant, "two days ago", time.Now().Add(-48*time.Hour))
	if got, err := s.q.Keys().FindKey(s.ctx, recent.ID); err != nil || !got.Expired(time.Now()) {
		s.Errorf("FindKey: %+v, %v", got, err)
	}
	for range queue.MaxKeys {
		s.key(tenant, "k", time.Time{})
	}
	keys := s.keys(tenant)
	if len(keys) != queue.MaxKeys+1 ||
		!slices.ContainsFunc(keys, func(k queue.Key) bool { return k.ID == recent.ID }) {
		s.Errorf("%d keys are listed, want %d and the one that has just expired", len(keys), queue.MaxKeys)
	}
	if _, err := s.q.Keys().FindKey(s.ctx, long.ID); !errors.Is(err, queue.ErrUnknownKey) {
		s.Errorf("FindKey of a key that expired two days ago: %v", err)
	}
}

func keyOutlives(s *suite) {
	k := s.key(tenant, "k", time.Time{})
	s.admit(work())
	if _, err := s.q.Purge(s.ctx, tenant, queue.Filter{}); err != nil {
		s.Fatalf("Purge: %v", err)
	}
	s.restart(func(o *queue.Options) {})
	if got, err := s.q.Keys().FindKey(s.ctx, k.ID); err != nil || got != k {
		s.Errorf("FindKey: %+v, %v", got, err)
	}
}
