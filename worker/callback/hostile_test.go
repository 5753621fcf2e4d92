package callback

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
)

// canary listens on loopback, with both families on one port, and counts who comes.
type canary struct {
	port  string
	calls atomic.Int32
}

func newCanary(t *testing.T) *canary {
	t.Helper()
	c := &canary{}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, c.port, _ = net.SplitHostPort(l.Addr().String())
	listeners := []net.Listener{l}
	if l6, err := net.Listen("tcp6", "[::1]:"+c.port); err == nil {
		listeners = append(listeners, l6)
	} else {
		t.Logf("no canary on IPv6: %v", err)
	}
	var ended sync.WaitGroup
	for _, l := range listeners {
		ended.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				c.calls.Add(1)
				_ = conn.Close() // it has said enough
			}
		})
	}
	t.Cleanup(func() {
		for _, l := range listeners {
			_ = l.Close() // only listened
		}
		ended.Wait()
	})
	return c
}

// names is a hostile DNS: each name's answers in turn, the last one from then on, and this machine
// for all names it does not list, which is what a system's resolver makes of 0x7f.1.
type names struct {
	mu      sync.Mutex
	answers map[string][]string
	asked   map[string]int
}

func (n *names) addresses(name string, v6 bool) []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []netip.Addr
	turns, ok := n.answers[name]
	if !ok {
		turns = []string{"127.0.0.1 ::1"}
	}
	key := name
	if v6 {
		key += " v6"
	}
	turn := turns[min(n.asked[key], len(turns)-1)]
	n.asked[key]++
	for text := range strings.FieldsSeq(turn) {
		if addr := netip.MustParseAddr(text); addr.Is6() == v6 {
			all = append(all, addr)
		}
	}
	return all
}

// resolver asks the names through a pipe.
func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go n.serve(there)
		return here, nil
	}}
}

// serve answers what comes in DNS over TCP (RFC 1035): a length, the header of 12 bytes, and one
// question.
func (n *names) serve(conn net.Conn) {
	defer conn.Close()
	for {
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		var labels []string
		end := 12
		for ; query[end] != 0; end += 1 + int(query[end]) {
			labels = append(labels, string(query[end+1:end+1+int(query[end])]))
		}
		kind := query[end+2]
		question := query[12 : end+5]
		var found []netip.Addr
		if kind == 1 || kind == 28 {
			found = n.addresses(strings.ToLower(strings.Join(labels, ".")), kind == 28)
		}
		answer := []byte{0, 0, query[0], query[1], 0x84, 0, 0, 1, 0, byte(len(found)), 0, 0, 0, 0}
		answer = append(answer, question...)
		for _, addr := range found {
			data := addr.AsSlice()
			answer = append(answer, 0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 0, 0, byte(len(data)))
			answer = append(answer, data...)
		}
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// errOutside is what the test makes of a dial that was allowed: nothing is contacted but loopback.
var errOutside = errors.New("allowed to dial outside")

// enclose makes a caller resolve through the names and keeps it from leaving this machine; what it
// dials passes its own control first.
func (n *names) enclose(c *outbound.Client) {
	c.Dialer.Resolver = n.resolver()
	control := c.Dialer.Control
	c.Dialer.Control = func(network, address string, raw syscall.RawConn) error {
		if control != nil {
			if err := control(network, address, raw); err != nil {
				return err
			}
		}
		if at, err := netip.ParseAddrPort(address); err != nil || !at.Addr().IsLoopback() {
			return errOutside
		}
		return nil
	}
}

// Where a hostile target is stopped.
const (
	atSubmission = "at submission" // by Check, and again at each attempt
	atDial       = "at the dial"   // in the end; before that it may have led elsewhere
	elsewhere    = "elsewhere"     // it leads to a public address and nowhere else
	either       = "either"        // at the dial or elsewhere, as the system orders the addresses
	answered     = "answered"      // by a receiver that is listed
)

// TestHostileTargets is target S1: no hostile target gets a connection to the canary, whichever
// layer is asked, and none panics.
func TestHostileTargets(t *testing.T) {
	c := newCanary(t)
	for _, name := range []string{
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
	} {
		t.Setenv(name, "http://127.0.0.1:"+c.port)
	}
	t.Setenv("NO_PROXY", "")
	redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := map[string]int{
			"/301": 301, "/302": 302, "/303": 303, "/307": 307, "/308": 308, "/200": 200,
		}[r.URL.Path]
		w.Header().Set("Location", "http://127.0.0.1:"+c.port+"/")
		w.Header().Set("Refresh", "0; url=http://127.0.0.1:"+c.port+"/")
		w.Header().Set("Alt-Svc", `h2="127.0.0.1:`+c.port+`"`)
		if status == 0 {
			status = 302
			w.Header().Set("Location", "://%zz")
		}
		w.WriteHeader(status)
	}))
	defer redirecting.Close()
	dns := &names{asked: map[string]int{}, answers: map[string][]string{
		"public.test":    {"93.184.215.14 2606:2800:21f:cb07:6820:80da:af6b:8b2c"},
		"rebind.test":    {"93.184.215.14", "127.0.0.1"},
		"rebind6.test":   {"2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::1"},
		"rebind2.test":   {"93.184.215.14", "93.184.215.14", "127.0.0.1 ::1"},
		"loop.test":      {"127.0.0.1"},
		"loop6.test":     {"::1"},
		"loop8.test":     {"127.13.0.1"},
		"both.test":      {"127.0.0.1 ::1 10.0.0.1"},
		"mixed.test":     {"127.0.0.1 93.184.215.14"},
		"zero.test":      {"0.0.0.0"},
		"zero6.test":     {"::"},
		"private.test":   {"192.168.1.1"},
		"metadata.test":  {"169.254.169.254"},
		"azure.test":     {"168.63.129.16"},
		"cgnat.test":     {"100.64.0.1"},
		"multicast.test": {"224.0.0.251"},
		"broadcast.test": {"255.255.255.255"},
		"mapped.test":    {"::ffff:127.0.0.1"},
		"compat.test":    {"::127.0.0.1"},
		"nat64.test":     {"64:ff9b::7f00:1"},
		"nat64own.test":  {"64:ff9b:1::7f00:1"},
		"6to4.test":      {"2002:7f00:1::1"},
		"teredo.test":    {"2001:0:7f00:1::1"},
		"ula.test":       {"fd00:ec2::254"},
		"linklocal.test": {"fe80::1"},
		"allnodes.test":  {"ff02::1"},
		"documents.test": {"2001:db8::1"},
	}}
	g := receivers(t, "http://127.0.0.1:"+c.port+"/hooks/", "https://partner.example/", redirecting.URL)
	s := newService(t, Config{Receivers: g, Timeout: 2 * time.Second})
	dns.enclose(s.public)
	dns.enclose(s.listed)

	targets := []struct{ url, stopped string }{
		// Names, which only the dial can tell.
		{"http://rebind.test.:PORT/", atDial}, {"http://rebind6.test.:PORT/", atDial},
		{"https://rebind2.test.:PORT/", atDial},
		{"http://loop.test.:PORT/", atDial}, {"https://loop.test.:PORT/", atDial},
		{"http://loop6.test.:PORT/", atDial}, {"http://loop8.test.:PORT/", atDial},
		{"http://both.test.:PORT/", atDial}, {"http://mixed.test.:PORT/", either},
		{"http://zero.test.:PORT/", atDial}, {"http://zero6.test.:PORT/", atDial},
		{"http://private.test.:PORT/", atDial}, {"http://metadata.test.:PORT/", atDial},
		{"http://azure.test.:PORT/", atDial}, {"http://cgnat.test.:PORT/", atDial},
		{"http://multicast.test.:PORT/", atDial}, {"http://broadcast.test.:PORT/", atDial},
		{"http://mapped.test.:PORT/", atDial}, {"http://compat.test.:PORT/", atDial},
		{"http://nat64.test.:PORT/", atDial}, {"http://nat64own.test.:PORT/", atDial},
		{"http://6to4.test.:PORT/", atDial}, {"http://teredo.test.:PORT/", atDial},
		{"http://ula.test.:PORT/", atDial}, {"http://linklocal.test.:PORT/", atDial},
		{"http://allnodes.test.:PORT/", atDial}, {"http://documents.test.:PORT/", atDial},
		{"http://127.0.0.1.nip.test.:PORT/", atDial}, {"http://localhost.test.:PORT/", atDial},
		{"http://HOST:PORT/", atDial},
		// The proxy variables lead to the canary; what is dialled is the target.
		{"http://public.test.:PORT/", elsewhere}, {"https://public.test.:PORT/", elsewhere},
		{"http://public.test./", elsewhere},
		// Addresses.
		{"http://127.0.0.1:PORT/", atSubmission}, {"http://127.0.0.1:PORT", atSubmission},
		{"https://127.0.0.1:PORT/", atSubmission}, {"http://[::1]:PORT/", atSubmission},
		{"http://[0:0:0:0:0:0:0:1]:PORT/", atSubmission}, {"http://0.0.0.0:PORT/", atSubmission},
		{"http://[::]:PORT/", atSubmission}, {"http://0:PORT/", atSubmission},
		{"http://2130706433:PORT/", atSubmission}, {"http://017700000001:PORT/", atSubmission},
		{"http://0177.0.0.1:PORT/", atSubmission}, {"http://0x7f000001:PORT/", atSubmission},
		{"http://0x7f.0.0.1:PORT/", atSubmission}, {"http://0X7F.0X1:PORT/", atSubmission},
		{"http://127.1:PORT/", atSubmission}, {"http://127.0.1:PORT/", atSubmission},
		{"http://127.0.0.1.:PORT/", atSubmission}, {"http://00000127.0.0.1:PORT/", atSubmission},
		{"http://127.0.0.257:PORT/", atSubmission},
		{"http://[::ffff:127.0.0.1]:PORT/", atSubmission}, {"http://[::ffff:7f00:1]:PORT/", atSubmission},
		{"http://[0:0:0:0:0:ffff:127.0.0.1]:PORT/", atSubmission},
		{"http://[::127.0.0.1]:PORT/", atSubmission}, {"http://[64:ff9b::127.0.0.1]:PORT/", atSubmission},
		{"http://[64:ff9b:1::7f00:1]:PORT/", atSubmission},
		{"http://[2002:7f00:1::]:PORT/", atSubmission}, {"http://[fe80::1%25lo]:PORT/", atSubmission},
		{"http://[::1%25lo]:PORT/", atSubmission},
		{"http://[::1%25]:PORT/", atSubmission}, {"http://[127.0.0.1]:PORT/", atSubmission},
		{"http://::1:PORT/", atSubmission},
		{"http://localhost:PORT/", atSubmission}, {"http://LocalHost.:PORT/", atSubmission},
		{"http://a.localhost:PORT/", atSubmission}, {"http://localhost..:PORT/", atSubmission},
		// What programs read in two ways.
		{"http://public.test@127.0.0.1:PORT/", atSubmission},
		{"http://127.0.0.1:PORT@public.test/", atSubmission}, {"http://public.test:80@127.0.0.1:PORT/",
			atSubmission},
		{"http://@127.0.0.1:PORT/", atSubmission}, {"http://public.test#@127.0.0.1:PORT/", atSubmission},
		{"http://public.test\\@127.0.0.1:PORT/", atSubmission},
		{"http://127.0.0.1:PORT\\.public.test/", atSubmission}, {"http://public.test%40127.0.0.1:PORT/",
			atSubmission}, {"http://public.test%00.127.0.0.1:PORT/", atSubmission},
		{"http://127.0.0.1%2f@public.test:PORT/", atSubmission},
		{"http://public.test 127.0.0.1:PORT/", atSubmission}, {"http://１２７.0.0.1:PORT/", atSubmission},
		{"http://①②⑦.0.0.1:PORT/", atSubmission}, {"http://127。0。0。1:PORT/", atSubmission},
		{"http://ⓛocalhost:PORT/", atSubmission}, {"http://%31%32%37.0.0.1:PORT/", atSubmission},
		{"http://public.test\r\nHost: 127.0.0.1:PORT/", atSubmission},
		{"http:/127.0.0.1:PORT/", atSubmission}, {"http:127.0.0.1:PORT", atSubmission},
		{"//127.0.0.1:PORT/", atSubmission},
		{"ftp://127.0.0.1:PORT/", atSubmission}, {"gopher://127.0.0.1:PORT/_PING", atSubmission},
		{"unix:///var/run/docker.sock", atSubmission}, {"", atSubmission},
		{"http://loop.test.:22/", atSubmission}, {"http://loop.test.:6553700/", atSubmission},
		{"http://loop.test.:-1/", atSubmission},
		// Prefixes that are nearly listed.
		{"https://partner.example.evil.test.:PORT/", atDial}, {"https://partner.example@evil.test:PORT/",
			atSubmission}, {"http://partner.example:PORT/", atDial},
		{"https://partner.example:PORT/", atDial}, {"https://partner.example.:PORT/", atDial},
		{"https://partner.examples:PORT/", atDial},
		{"http://127.0.0.1:PORT/hooks", atSubmission}, {"http://127.0.0.1:PORT/hooksx/", atSubmission},
		{"https://127.0.0.1:PORT/hooks/", atSubmission},
		{"http://127.0.0.1:PORT/hooks/../admin", atSubmission},
		{"http://127.0.0.1:PORT/hooks/..", atSubmission}, {"http://127.0.0.1:PORT/hooks/%2e%2e/admin",
			atSubmission},
		{"http://127.0.0.1:PORT/hooks/%252e%252e/admin", atSubmission},
		{"http://127.0.0.1:PORT/hooks/..%2fadmin", atSubmission}, {"http://127.0.0.1:PORT/hooks/..%5cadmin",
			atSubmission},
		{"http://127.0.0.1:PORT/hooks/..;/admin", atSubmission},
		{"http://127.0.0.1:PORT/hooks/%c0%ae%c0%ae/admin", atSubmission},
		{"http://127.0.0.1:PORT/./hooks/a", atSubmission},
		{"http://127.0.0.1:PORT/admin?/hooks/", atSubmission},
		{"http://127.0.0.1:PORT/admin#/hooks/", atSubmission}, {"http://127.0.0.2:PORT/hooks/", atSubmission},
		{"http://[::ffff:127.0.0.1]:PORT/hooks/", atSubmission},
		{"http://localhost:PORT/hooks/", atSubmission}, {"http://loop.test.:PORT/hooks/", atDial},
		// Redirects of a receiver that is listed.
		{redirecting.URL + "/301", answered}, {redirecting.URL + "/302", answered},
		{redirecting.URL + "/303", answered}, {redirecting.URL + "/307", answered},
		{redirecting.URL + "/308", answered}, {redirecting.URL + "/broken", answered},
		{redirecting.URL + "/200", answered},
	}
	if len(targets) < 40 {
		t.Errorf("only %d targets", len(targets))
	}
	for _, target := range targets {
		raw := strings.ReplaceAll(target.url, "PORT", c.port)
		if err := g.Check(raw, nil); (err != nil) != (target.stopped == atSubmission) {
			t.Errorf("%q at submission: %v", raw, err)
		}
		// Four times, because a name may lead elsewhere each time.
		var err error
		for range 4 {
			err = s.attempt(t.Context(), "06ah:1:succeeded", task(raw), true)
		}
		final := errors.Is(err, asynq.SkipRetry)
		if target.stopped != either && final != (target.stopped == atSubmission || target.stopped == atDial) {
			t.Errorf("%q: archived at once %t: %v", raw, final, err)
		}
		if target.stopped == answered && (err == nil) != strings.HasSuffix(raw, "/200") {
			t.Errorf("%q: %v", raw, err)
		}
		if err != nil && strings.Contains(err.Error(), "://") {
			t.Errorf("%q is quoted: %v", raw, err)
		}
		// The dial alone must stop all of it, should the rules of the URL ever miss something.
		if req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, raw, nil); err == nil &&
			target.stopped != answered {
			if resp, err := s.public.Transport.RoundTrip(req); err == nil {
				resp.Body.Close()
				t.Errorf("%q: the dial alone lets it through", raw)
			}
		}
		if n := c.calls.Swap(0); n > 0 {
			t.Errorf("%q: %d connections to the canary", raw, n)
		}
	}
	// The canary is alive, and reached by what the operator lists.
	err := s.attempt(t.Context(), "06ah:1:succeeded", task("http://127.0.0.1:"+c.port+"/hooks/x"), true)
	if err == nil || errors.Is(err, asynq.SkipRetry) {
		t.Errorf("a listed target: %v, want an error with retries", err)
	}
	if c.calls.Load() == 0 {
		t.Error("a listed target gets no connection")
	}
	s.public.Transport.CloseIdleConnections()
	s.listed.Transport.CloseIdleConnections()
}

// task is what HandOver makes of a job that asks for this URL.
func task(rawURL string) *asynq.Task {
	return asynq.NewTaskWithHeaders(taskType, []byte(`{}`), map[string]string{urlHeader: rawURL})
}

// A proxy connects to the target itself, so the name is checked before the proxy is asked for it.
func TestCallbacksThroughAProxy(t *testing.T) {
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.RequestURI) }))
	defer proxy.Close()
	s := newService(t, Config{Receivers: receivers(t, "http://listed.test/"), Proxy: proxy.URL})
	n := &names{asked: map[string]int{}, answers: map[string][]string{
		"public.test": {"93.184.216.34"}, "private.test": {"10.0.0.7"}, "both.test": {"93.184.216.34 ::1"}, "mapped.test": {"::ffff:127.0.0.1"},
		"nowhere.test": {""},
	}}
	s.proxied.Dialer.Resolver = n.resolver()
	for target, c := range map[string]struct {
		sent, final bool
	}{
		"http://public.test/x?y=1": {true, false}, "http://listed.test/x": {true, false}, "http://private.test/x": {false, true},
		"http://both.test/x": {false, true}, "http://mapped.test/x": {false, true}, "http://nowhere.test/x": {false, false},
		"http://127.0.0.1:81/x": {false, true},
	} {
		asked = nil
		err := s.attempt(t.Context(), "06ah:1:succeeded", task(target), true)
		if sent := len(asked) == 1 && asked[0] == target; sent != c.sent || (err == nil) != c.sent || errors.Is(err, asynq.SkipRetry) != c.final {
			t.Errorf("%s: the proxy was asked for %q, %v", target, asked, err)
		}
	}
	for _, client := range []*outbound.Client{s.listed, s.public, s.proxied} {
		client.Close()
	}
}

// TestNamesThatNobodyResolves: before a proxy is asked, the name of a receiver is resolved within
// the slot of its attempt. One that is never resolved opens the breaker of the receiver.
func TestNamesThatNobodyResolves(t *testing.T) {
	s := newService(t, Config{Receivers: receivers(t), Proxy: "http://127.0.0.1:1", Timeout: 50 * time.Millisecond})
	defer s.proxied.Close()
	s.proxied.Dialer.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		s.slots.mu.Lock()
		taken := s.slots.taken
		s.slots.mu.Unlock()
		if taken != 1 && ctx.Err() == nil { // else the attempt is over
			t.Errorf("%d slots are taken while a name is resolved", taken)
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for range breakerFailures {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // as asynq's, longer than the attempt
		if err := s.attempt(ctx, "06ah:1:succeeded", task("http://dark.test/x"), false); err == nil {
			t.Fatal("an attempt succeeded")
		}
		cancel()
	}
	if n := s.slots.open(); n != 1 {
		t.Errorf("%v breakers are open", n)
	}
}

// TestBesideAProxy: what NO_PROXY excludes is dialled from here, and its address is checked, for an
// endpoint of a tenant and a listed URL, too.
func TestBesideAProxy(t *testing.T) {
	c := newCanary(t)
	for _, name := range []string{"HTTP_PROXY", "http_proxy"} {
		t.Setenv(name, "http://127.0.0.1:"+c.port)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		t.Setenv(name, ".direct.test")
	}
	g, err := NewReceivers([]string{"http://listed.direct.test/"}, netip.MustParsePrefix("10.9.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	own := queue.TenantCallbacks{Endpoints: []string{
		"http://metadata.direct.test/", "http://denied.direct.test/", "http://mine.direct.test/",
	}}
	s := newService(t, Config{
		Receivers: g, Proxy: outbound.EnvProxy, Timeout: 2 * time.Second,
		Of: func(context.Context, string) (queue.TenantCallbacks, error) { return own, nil },
	})
	dns := &names{asked: map[string]int{}, answers: map[string][]string{
		"metadata.direct.test": {"169.254.169.254"}, "denied.direct.test": {"10.9.0.1"}, "listed.direct.test": {"10.9.0.2"},
		"mine.direct.test": {"10.8.0.1"},
	}}
	for _, client := range []*outbound.Client{s.listed, s.own, s.public} {
		dns.enclose(client)
		defer client.Close()
	}
	for target, final := range map[string]bool{
		"http://metadata.direct.test/x": true, "http://denied.direct.test/x": true, "http://listed.direct.test/x": true,
		"http://mine.direct.test/x": false, // allowed to dial outside
	} {
		if err := s.attempt(t.Context(), "06ah:1:succeeded", task(target), true); err == nil || errors.Is(err, asynq.SkipRetry) != final {
			t.Errorf("%s: %v", target, err)
		}
	}
	if n := c.calls.Load(); n != 0 {
		t.Errorf("the proxy got %d calls", n)
	}
}
