package operators

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memory is a store of accounts.
type memory struct {
	mu    sync.Mutex
	all   []Account
	err   error
	reads int
	uses  int
}

func (m *memory) CreateOperator(_ context.Context, a Account) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, a)
	return m.err
}

func (m *memory) RevokeOperator(context.Context, string) (Account, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.all[0]
	m.all = m.all[1:]
	return a, m.err
}

func (m *memory) ListOperators(context.Context) ([]Account, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	return append([]Account(nil), m.all...), m.err
}

func (m *memory) UseOperator(context.Context, string, time.Time) error {
	m.uses++
	return m.err
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

var errAway = errors.New("away")

func free() error { return nil }

// TestRing: what another process creates is known at once, what it revokes is unknown within a
// second, and a known token costs one read a second.
func TestRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := &memory{}, t.Context()
		here, there := NewRing(m), NewRing(m)
		a := Account{ID: "a", Name: "a", Role: Viewer}
		if _, err := there.Find(ctx, "a", free); !errors.Is(err, ErrUnknown) {
			t.Fatalf("before it is made: %v", err)
		}
		if err := here.Create(ctx, a); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*Ring{here, there} {
			if got, err := r.Find(ctx, "a", free); err != nil || got.Name != "a" {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		m.reads = 0
		for range 1000 {
			if _, err := there.Find(ctx, "a", free); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if m.reads > 6 {
			t.Errorf("%d reads in 5 s", m.reads)
		}
		if _, err := here.Revoke(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := here.Find(ctx, "a", free); !errors.Is(err, ErrUnknown) {
			t.Errorf("revoked, at the process that did: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := there.Find(ctx, "a", free); !errors.Is(err, ErrUnknown) {
			t.Errorf("revoked a second ago: %v", err)
		}
		over := errors.New("too many guesses")
		if _, err := there.Find(ctx, "b", func() error { return over }); !errors.Is(err, over) {
			t.Errorf("an unknown id beyond the limit: %v", err)
		}
	})
}

// TestRingWhileAway: known tokens stay valid ten minutes, unknown ones get the error, and
// the store is tried once a second.
func TestRingWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := &memory{all: []Account{{ID: "a", Name: "a", Role: Viewer}}}, t.Context()
		r := NewRing(m)
		if _, err := r.Find(ctx, "a", free); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		m.fail(errAway)
		m.reads = 0
		for time.Since(start) < AwayAge-time.Second {
			if _, err := r.Find(ctx, "a", free); err != nil {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			if time.Since(start) > time.Second {
				if _, err := r.Find(ctx, "b", free); !errors.Is(err, errAway) {
					t.Fatalf("an unknown one after %v: %v", time.Since(start), err)
				}
			}
			time.Sleep(250 * time.Millisecond)
		}
		if m.reads > 600 {
			t.Errorf("%d reads in ten minutes", m.reads)
		}
		time.Sleep(2 * time.Second)
		if _, err := r.Find(ctx, "a", free); !errors.Is(err, errAway) {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		m.fail(nil)
		time.Sleep(time.Second)
		if _, err := r.Find(ctx, "a", free); err != nil {
			t.Errorf("the store is back: %v", err)
		}
	})
}

// TestLastUse is stored once in half a minute, by all processes together.
func TestLastUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := NewRing(m)
		for range 60 {
			r.Use(t.Context(), Account{ID: "a"})
			time.Sleep(time.Second)
		}
		if m.uses != 2 {
			t.Errorf("%d uses were stored in a minute", m.uses)
		}
		r.Use(t.Context(), Account{ID: "b", Used: time.Now().Add(-time.Second)})
		if m.uses != 2 {
			t.Error("a use was stored that another process has stored")
		}
	})
}

func TestTokens(t *testing.T) {
	one, other := NewToken(), NewToken()
	got, ok := ParseToken(one.Reveal())
	if !ok || got != one || one == other || !IsToken(one.Reveal()) {
		t.Fatalf("%v", one.Reveal())
	}
	a := Account{ID: one.ID(), Hash: one.Hash()}
	if !one.Opens(a) || other.Opens(a) || (Token{}).Opens(Account{}) {
		t.Error("a token opens the wrong account, or not its own")
	}
	text := one.Reveal()
	for _, bad := range []string{
		"", "sluiceop_", text[1:], text + "A", text[:len(text)-1], text[:len(text)-1] + "a", strings.ToUpper(text),
		strings.Replace(text, "op_", "_", 1), text[:9] + "A" + text[10:], " " + text,
	} {
		if _, ok := ParseToken(bad); ok {
			t.Errorf("%q is taken for a token", bad)
		}
	}
	if s := one.String(); strings.Contains(s, one.ID()) {
		t.Error("a token is printed")
	}
}

func TestNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/8": "10.0.0.0/8", "::ffff:10.1.2.3": "10.1.2.3/32", "2001:db8::1": "2001:db8::1/128",
		"2001:db8::1/32": "2001:db8::/32", "0.0.0.0/0": "0.0.0.0/0", "": "", "x": "", "10.1.2.3/33": "", "fe80::1%eth0": "", "::ffff:10.0.0.0/104": "",
	} {
		p, ok := Network(text)
		if ok != (want != "") || ok && p.String() != want {
			t.Errorf("%q: %v %v, want %q", text, p, ok, want)
		}
	}
	a := Account{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fe80::/10")}}
	for text, want := range map[string]bool{"10.9.9.9": true, "::ffff:10.1.1.1": true, "fe80::1%eth0": true, "11.0.0.1": false, "::1": false} {
		if a.From(netip.MustParseAddr(text)) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
	if a.From(netip.Addr{}) || !(Account{}).From(netip.Addr{}) {
		t.Error("without an address only an account without networks is accepted")
	}
	for name, want := range map[string]bool{"admin": true, "Local": true, "OIDC:eve": true, "adm": false, "olaf": false} {
		if Reserved(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestRoles(t *testing.T) {
	for role, may := range map[Role][]bool{Viewer: {true, false, false}, Operator: {true, true, false}, Admin: {true, true, true}, "": {false, false, false}, "root": {false, false, false}} {
		for i, least := range Roles() {
			if role.May(least) != may[i] {
				t.Errorf("%q may %s: %v", role, least, !may[i])
			}
		}
	}
	if Admin.May("root") { // index -1
		t.Error("an unknown role is needed, and an admin has it")
	}
}
