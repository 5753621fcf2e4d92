package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// signInFrom posts a token from an address.
func signInFrom(d *Dashboard, peer, shown string) *http.Response {
	r := httptest.NewRequest("POST", "http://localhost:8081/login", strings.NewReader(url.Values{"token": {shown}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr = peer
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result()
}

func TestWrongTokensAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDashboard(t, token)
		const guesser, another = "192.0.2.1:4000", "192.0.2.2:4000"
		for n := range attemptsLimit {
			if r := signInFrom(d, guesser, fmt.Sprint("guess ", n)); r.StatusCode != http.StatusUnauthorized || r.Header.Get("Retry-After") != "" {
				t.Fatalf("wrong token %d: %d", n, r.StatusCode)
			}
			time.Sleep(time.Second)
		}
		for _, shown := range []string{"guess", token} { // the right one is not found by going on
			r := signInFrom(d, guesser, shown)
			if said := content(t, r); r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") != "50" || len(r.Cookies()) > 0 ||
				!strings.Contains(said, "try again in a minute") || r.Header.Get("Content-Security-Policy") == "" {
				t.Errorf("one too many: %d, Retry-After %q: %s", r.StatusCode, r.Header.Get("Retry-After"), said)
			}
		}
		if r := signInFrom(d, another, token); r.StatusCode != http.StatusSeeOther {
			t.Errorf("another address: %d", r.StatusCode)
		}
		time.Sleep(49_999 * time.Millisecond)
		if r := signInFrom(d, guesser, token); r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") != "1" {
			t.Errorf("a moment before: %d", r.StatusCode)
		}
		time.Sleep(time.Millisecond)
		if r := signInFrom(d, guesser, token); r.StatusCode != http.StatusSeeOther || len(r.Cookies()) != 1 {
			t.Errorf("when the time is up: %d", r.StatusCode)
		}
		for n := range attemptsLimit { // the right one has made the former wrong ones forgotten
			if r := signInFrom(d, guesser, "guess"); r.StatusCode != http.StatusUnauthorized {
				t.Errorf("wrong token %d after the right one: %d", n, r.StatusCode)
			}
		}
	})
}

func TestAddressesOfAttempts(t *testing.T) {
	of := func(peer string) string { return addressOf(&http.Request{RemoteAddr: peer}) }
	for _, same := range [][2]string{
		{"192.0.2.1:1", "192.0.2.1:2"}, {"192.0.2.1:1", "[::ffff:192.0.2.1]:2"}, {"[2001:db8::1]:1", "[2001:db8::ffff:2]:1"},
		{"[fe80::1%eth0]:1", "[fe80::1%eth1]:1"}, {"", "pipe"},
	} {
		if of(same[0]) != of(same[1]) {
			t.Errorf("%s and %s are told apart", same[0], same[1])
		}
	}
	for _, two := range [][2]string{{"192.0.2.1:1", "192.0.2.2:1"}, {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1"}} {
		if of(two[0]) == of(two[1]) {
			t.Errorf("%s and %s are one", two[0], two[1])
		}
	}
}

// However many addresses try, so many are remembered.
func TestAttemptsAreBounded(t *testing.T) {
	a, err := newAttempts()
	if err != nil {
		t.Fatal(err)
	}
	for n := range attemptsHeld + 1000 {
		a.begin(&http.Request{RemoteAddr: fmt.Sprintf("10.%d.%d.%d:1", n>>16&255, n>>8&255, n&255)})
	}
	if held := a.wrong.Keys(); held != attemptsHeld {
		t.Errorf("%d addresses are held", held)
	}
}
