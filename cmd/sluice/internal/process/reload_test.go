package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/certtest"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const reloadedFile = "routes: { default: { url: \"http://127.0.0.1:9000/\" } }\n%s\n"

// fileOf returns the file with these lines. They may have routes of their own.
func fileOf(lines string) string {
	if strings.HasPrefix(lines, "routes:") {
		return lines
	}
	return fmt.Sprintf(reloadedFile, lines)
}

// reloading is a Reloader over a file that a test writes, and what it has put into force.
type reloading struct {
	*Reloader
	t     *testing.T
	log   bytes.Buffer
	set   []string // the rate of acme, each time
	calls []string // X-Key of the route default, each time
	certs []string // the sections of listeners, each time
	fails error
	at    time.Time
}

func startReloading(t *testing.T, file string) *reloading {
	t.Helper()
	r := &reloading{t: t, at: time.Now()}
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	r.Reloader = &Reloader{path: path}
	r.write(file)
	load := func() (config.Config, error) { return config.Load(config.Sources{File: path}) }
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	r.Reloader = NewReloader(path, cfg, load, slog.New(slog.NewTextHandler(&r.log, nil)))
	r.Reloader.set = func(_ context.Context, b shaper.Baseline, tenants map[string]shaper.Overrides) error {
		if r.fails != nil {
			return r.fails
		}
		p, _ := b.Resolve(shaper.Statements{File: tenants["acme"]}, "")
		r.set = append(r.set, p.Rate.String())
		return nil
	}
	r.Reloader.secure = func(section string, t config.ListenerTLS) {
		if !t.On() {
			r.t.Error("secured without a certificate")
		}
		r.certs = append(r.certs, section)
	}
	r.Reloader.called = func(map[string]config.Route) {}
	r.Reloader.call = func(name string, route config.Route) error {
		r.calls = append(r.calls, name+" "+route.Headers["X-Key"])
		return nil
	}
	return r
}

// write gives the file another time of change, however fast the test is.
func (r *reloading) write(file string) {
	r.t.Helper()
	r.at = r.at.Add(time.Second)
	err := errors.Join(os.WriteFile(r.path, []byte(fileOf(file)), 0o600),
		os.Chtimes(r.path, r.at, r.at))
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *reloading) checks(n int) {
	for range n {
		r.poll(r.t.Context())
	}
}

func (r *reloading) want(set string, good float64, logged ...string) {
	r.t.Helper()
	if got := strings.Join(r.set, " "); got != set {
		r.t.Errorf("put into force: %q, want %q", got, set)
	}
	if got := testutil.ToFloat64(r.good); got != good {
		r.t.Errorf("successful: %v, want %v", got, good)
	}
	for _, text := range logged {
		if !strings.Contains(r.log.String(), text) {
			r.t.Errorf("%q is not logged:\n%s", text, r.log.String())
		}
	}
	r.log.Reset()
}

func TestChangedFileIsPutIntoForce(t *testing.T) {
	r := startReloading(t, "tenants: { acme: { rate: 5/s } }")
	r.checks(3)
	r.want("", 1)
	r.write("tiers: { pro: { rate: 50/s } }\ntenants: { acme: { tier: pro } }")
	r.checks(1)
	r.want("", 1) // it may be half written
	r.checks(1)
	r.want("50/s", 1, "are in force")
	r.checks(3)
	r.want("50/s", 1)
}

// A signal puts the file into force although it has not changed, because another process's file may
// be in force.
func TestSignalPutsTheFileIntoForce(t *testing.T) {
	r := startReloading(t, "tenants: { acme: { rate: 5/s } }")
	ctx, cancel := context.WithCancel(t.Context())
	r.Reloader.set = func(context.Context, shaper.Baseline, map[string]shaper.Overrides) error {
		r.set = append(r.set, "set")
		cancel()
		return nil
	}
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	r.run(ctx, signals)
	r.want("set", 1, "are in force")
	r.checks(3)
	r.want("set", 1)
}

func TestFileWithAMistakeIsRefusedWhole(t *testing.T) {
	r := startReloading(t, "tenants: { acme: { rate: 5/s } }")
	r.write("tenants: { acme: { rate: 7/s }, shop: { rate: fast, capacity: -1 } }")
	r.checks(4)
	r.want("", 0, "tenants.shop.rate", "tenants.shop.capacity", "stay in force")
	if n := strings.Count(r.log.String(), "refused"); n != 0 {
		t.Errorf("said again: %d times", n)
	}
	r.write("tenants: { acme: { rate: 9/s } }")
	r.checks(2)
	r.want("9/s", 1)
	r.write("tenants: { acme: { rate: } ")
	r.checks(2)
	r.want("9/s", 0, "must be YAML")
	r.write("tenants: { acme: { rate: 9/s } }")
	r.checks(2)
	r.want("9/s", 1) // as before the mistake: nothing to do
}

// A file of another environment, or of none, is refused whole, on a signal too. So is one with a
// name in a process without.
func TestFileOfAnotherEnvironmentIsRefused(t *testing.T) {
	const production, staging = "store: { environment: production }\n", "store: { environment: staging }\n"
	for name, c := range map[string]struct{ before, after, logged string }{
		"another": {production, staging, "store.environment: staging: must be production, as when"},
		"none":    {production, "", "store.environment: not set: must be production, as when"},
		"a first": {"", staging, "store.environment: staging: must be not set, as when"},
	} {
		t.Run(name, func(t *testing.T) {
			r := startReloading(t, c.before+"tenants: { acme: { rate: 5/s } }")
			r.write(c.after + "tenants: { acme: { rate: 7/s } }")
			r.checks(4)
			if n := strings.Count(r.log.String(), "\n"); n != 1 {
				t.Errorf("%d lines are logged:\n%s", n, r.log.String())
			}
			r.want("", 0, c.logged, "stay in force")
			r.asked = true
			r.reload(t.Context())
			r.want("", 0, c.logged)
			r.write(c.before + "tenants: { acme: { rate: 9/s } }")
			r.checks(2)
			r.want("9/s", 1)
		})
	}
}

func TestFilesWithoutContentChangeNothing(t *testing.T) {
	many := "tenants: {"
	for i := range 30 {
		many += fmt.Sprintf(" t%d: { rate: 7/s },", i)
	}
	many += " acme: { rate: 5/s } }"
	const few = "tenants: { t1: { rate: 7/s } }"
	cut := fmt.Sprintf(reloadedFile, few)
	for name, content := range map[string]string{
		"nothing": "", "a comment": "# soon\n", "a mark": "---\n", "null": "~\n", "a part of the tenants": cut,
	} {
		r := startReloading(t, many)
		r.write(few)
		if err := os.WriteFile(r.path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r.poll(t.Context())
		r.poll(t.Context())
		if len(r.set) != 0 || !strings.Contains(r.log.String(), "is refused") {
			t.Errorf("%s: put into force %v\n%s", name, r.set, r.log.String())
		}
		queuetest.Compare(t, name+": refused", testutil.ToFloat64(r.good), 0.0)
	}
	r := startReloading(t, many)
	r.write(few)
	r.asked = true
	r.reload(t.Context())
	queuetest.Compare(t, "fewer tenants by a signal", len(r.set), 1)
	// A signal allows what its own reload finds, and not what a later poll does.
	r = startReloading(t, many)
	r.write("tenants: { t1: { rate: fast } }")
	r.asked = true
	r.reload(t.Context())
	r.write(few)
	r.checks(2)
	queuetest.Compare(t, "fewer tenants after a signal that was refused", len(r.set), 0)
}

// A pipe cannot be read again: it would hold up the stop of the process.
func TestPipesAreNotReadAgain(t *testing.T) {
	r := startReloading(t, "")
	if err := errors.Join(os.Remove(r.path), syscall.Mkfifo(r.path, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.asked = true
	r.reload(t.Context())
	if !strings.Contains(r.log.String(), "regular file") {
		t.Error(r.log.String())
	}
}

func TestFileThatIsGoneChangesNothing(t *testing.T) {
	r := startReloading(t, "tenants: { acme: { rate: 5/s } }")
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	r.checks(3)
	r.want("", 1)
	r.write("tenants: { acme: { rate: 6/s } }")
	r.checks(2)
	r.want("6/s", 1)
}

// Policies that Redis could not take are put into force when it answers.
func TestPoliciesWaitForRedis(t *testing.T) {
	r := startReloading(t, "tenants: { acme: { rate: 5/s } }")
	r.fails = fmt.Errorf("%w: away", queue.ErrUnavailable)
	r.write("tenants: { acme: { rate: 6/s } }")
	r.checks(4)
	r.want("", 0, "redis does not answer")
	r.fails = nil
	r.checks(1)
	r.want("6/s", 1)
}

// A file with a mistake cancels policies of an earlier file that wait for Redis.
func TestFileErrorCancelsWaitingPolicies(t *testing.T) {
	r := startReloading(t, "tenants: { acme: { rate: 5/s } }")
	r.fails = fmt.Errorf("%w: away", queue.ErrUnavailable)
	r.write("tenants: { acme: { rate: 6/s } }")
	r.checks(2)
	r.want("", 0, "redis does not answer")
	r.write("tenants: { acme: { rate: fast } }")
	r.reload(t.Context()) // as on SIGHUP
	r.fails = nil
	r.checks(3)
	r.want("", 0, "stay in force")
	r.write("tenants: { acme: { rate: 6/s } }")
	r.checks(2)
	r.want("6/s", 1)
}

// Changed settings that need a restart are named in the log.
func TestSettingsOfTheStartAreNamed(t *testing.T) {
	r := startReloading(t, "worker: { lease: 30s }")
	r.write("worker: { lease: 40s }\nlog: { level: warn }\ntenants: { acme: { rate: 6/s } }")
	r.reload(t.Context()) // as on SIGHUP, at once
	r.want("6/s", 1, "restart to apply them", "log, worker")
}

// A file that a header refers to is read again when it changes, and the change reaches the worker
// alone. One that has gone, or is empty, changes nothing, and is reported. So does a file that only
// changes a header.
func TestReloadOfReferences(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "key")
	at := time.Now()
	write := func(content string) {
		t.Helper()
		at = at.Add(time.Second)
		if err := errors.Join(os.WriteFile(secret, []byte(content), 0o600), os.Chtimes(secret, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	file := "routes: { default: { url: \"http://127.0.0.1:9000/\", headers: { X-Key: \"%s${file:" + secret + "}\" } } }\n"
	r := startReloading(t, fmt.Sprintf(file, "k "))
	polls := func() {
		for range 4 { // a file that still changes is not read
			r.poll(t.Context())
		}
	}
	polls()
	want := func(what string, calls ...string) {
		t.Helper()
		polls()
		if fmt.Sprint(r.calls) != fmt.Sprint(calls) {
			t.Errorf("%s: the upstream is called with %q, want %q", what, r.calls, calls)
		}
	}
	want("nothing has changed")
	write("two")
	want("another content", "default k two")
	write("")
	want("an empty file", "default k two")
	if !strings.Contains(r.log.String(), "must name a file that is not empty") {
		t.Errorf("an empty file is logged as:\n%s", r.log.String())
	}
	_ = os.Remove(secret)
	want("no file", "default k two")
	write("three")
	want("a file again", "default k two", "default k three")
	r.write(fmt.Sprintf(file, "key "))
	want("only a header", "default k two", "default k three", "default key three")
	if len(r.set) != 0 || strings.Contains(r.log.String(), "restart") {
		t.Errorf("the policies were set %d times; the log:\n%s", len(r.set), r.log.String())
	}
	r.write(strings.Replace(fmt.Sprintf(file, "for another "), ":9000", ":9001", 1))
	want("a header and the URL", "default k two", "default k three", "default key three")
	if strings.Contains(r.log.String(), "three") {
		t.Errorf("the log has the secret:\n%s", r.log.String())
	}
}

// A certificate comes into force beside a mistake elsewhere. One that its key does not fit does
// not, and is logged once.
func TestCertificatesAreRenewed(t *testing.T) {
	ca := certtest.New(t, "ca")
	dir := t.TempDir()
	at := time.Now()
	write := func(name, content string) {
		t.Helper()
		at = at.Add(time.Second)
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	renew := func() (key string) {
		cert, key := ca.Issue(t, certtest.Subject{End: time.Now().AddDate(1, 0, 0)})
		write("cert.pem", cert)
		return key
	}
	write("key.pem", renew())
	lines := fmt.Sprintf("api: { tls: { cert: %[1]s/cert.pem, key: %[1]s/key.pem } }\ntenants: { acme: { rate: %%s } }", dir)
	r := startReloading(t, fmt.Sprintf(lines, "5/s"))
	certs := func(want string) {
		t.Helper()
		if got := strings.Join(r.certs, " "); got != want {
			t.Errorf("put into force: %q, want %q", got, want)
		}
	}
	key := renew()
	r.checks(6)
	certs("")
	if n := strings.Count(r.log.String(), "private key does not match"); n != 1 {
		t.Errorf("%d lines:\n%s", n, r.log.String())
	}
	write("key.pem", key)
	r.checks(3)
	certs("api")
	r.want("", 1)
	r.write(fmt.Sprintf(lines, "fast")) // a mistake elsewhere
	write("key.pem", renew())
	r.checks(4)
	certs("api api")
	r.want("", 0, "tenants.acme.rate")
	r.write(fmt.Sprintf(lines, "7/s"))
	r.checks(3)
	r.want("7/s", 1)
	if strings.Contains(r.log.String(), "restart") {
		t.Errorf("log:\n%s", r.log.String())
	}
}
