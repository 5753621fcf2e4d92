package queue_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// client is a plain connection to the server behind the engine's back.
func client(t *testing.T, url string) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	t.Cleanup(func() { _ = c.Close() }) // the server may be gone already
	return c
}

func TestUnsafeRedisIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no append-only file": {[]string{"--appendonly", "no"}, []string{"append-only", "set appendonly yes"}},
		"eviction": {
			[]string{"--maxmemory-policy", "allkeys-lru"},
			[]string{"evicts", "allkeys-lru", "set maxmemory-policy noeviction"},
		},
		"both": {
			[]string{"--appendonly", "no", "--maxmemory-policy", "volatile-ttl"},
			[]string{"appendonly yes", "maxmemory-policy noeviction", "volatile-ttl"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := redistest.Start(t, test.args...).URL()
			_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url})
			if !errors.Is(err, queue.ErrUnsafe) || !strings.Contains(err.Error(), "allow_unsafe") {
				t.Fatalf("OpenEngine: %v, want ErrUnsafe that says how to accept it", err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			q := open(t, queue.EngineOptions{URL: url, AllowUnsafe: true}, defaults)
			if v, err := q.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.Admitted {
				t.Errorf("Submit: %+v, %v", v, err)
			}
		})
	}
}

const secret = "s3cr3tpw"

// TestSecretsStayOutOfMessages: no message about a URL or the server behind it has the password.
func TestSecretsStayOutOfMessages(t *testing.T) {
	urls := []string{
		"x", "redis", "http://u:" + secret + "@h/", "redis://u:" + secret + "@",
		"redis://:" + secret + "@h:port/0", "redis://:" + secret,
		"redis://u:" + secret + "@[::1/0", "redis://u:" + secret + "@h/notanumber",
		"redis://u:" + secret + "@h/0/1", "redis://u:%zz" + secret + "@h",
		"redis://:%zz" + secret, "redis://u:" + secret + "%40h:65536x",
		"redis://u:" + secret + "@h/0?nope=" + secret, "redis://h:6379:" + secret,
		"redis+cluster://u:" + secret + "@h:x", "redis+sentinel://u:" + secret + "@h",
		"redis+sentinel://:" + secret,
		"unix://u:" + secret + "@", "redis://u:" + secret + "\x7f@h", secret, "://" + secret,
		"redis://" + secret + "@h:x",
	}
	for _, url := range urls {
		err := queue.ParseURL(url)
		if err == nil {
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("ParseURL(%q) tells the password: %v", url, err)
		}
		_, opened := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url})
		if opened == nil || strings.Contains(opened.Error(), secret) {
			t.Errorf("OpenEngine(%q): %v", url, opened)
		}
	}
	for _, good := range []string{
		"redis://h", "redis://h:1/3", "rediss://u:p@h:1", "unix:///tmp/s", "unix://u:p@/tmp/s?db=2",
		"redis+cluster://h:1?addr=h2:1", "rediss+cluster://h:1",
		"redis+sentinel://h:1?master_name=m", "redis+sentinel://u:p@h:1?master_name=m&sentinel_password=s&db=3",
		"redis+cluster://h:1/0", "rediss://h:1?tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/k.pem",
		"rediss+cluster://h:1?tls_ca=/ca.pem&addr=h2:1", "rediss+sentinel://h:1?master_name=m&tls_ca=/ca.pem",
	} {
		if err := queue.ParseURL(good); err != nil {
			t.Errorf("ParseURL(%q): %v", good, err)
		}
	}
}

// TestURLsThatCannotWork: what would be ignored, or would end in a panic or an outage, is refused,
// and the error says what to write.
func TestURLsThatCannotWork(t *testing.T) {
	for url, want := range map[string]string{
		"redis+cluster://h:1/1":                                    "database 0 only",
		"redis+cluster://h:1?read_only=true":                       "masters only",
		"redis+cluster://h:1?route_by_latency=true":                "masters only",
		"redis+sentinel://h:1?master_name=m&route_by_latency=true": "masters only",
		"redis+sentinel://h:1?master_name=m&route_randomly=true":   "masters only",
		"redis+sentinel://h:1?master_name=m&replica_only=true":     "masters only",
		"redis+sentinel://h:1":                                     "?master_name=NAME",
		"redis+sentinel://h:1?master_name=m&password=" + secret:    "before the @",
		"redis://h:1?sentinel_password=" + secret:                  "redis+sentinel://",
		"redis://h:1?tls_ca=/ca.pem":                               "rediss://",
		"rediss://h:1?tls_cert=/c.pem":                             "belong together",
		"rediss+cluster://h:1?tls_key=/k.pem":                      "belong together",
	} {
		if err := queue.ParseURL(url); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("ParseURL(%q): %v, want %q", url, err, want)
		}
	}
}

// TestAuthentication runs against a server with a password: right, wrong and missing.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	socket := strings.TrimPrefix(redistest.Start(t, "--requirepass", secret).URL(), "unix://")
	e, err := queue.OpenEngine(t.Context(),
		queue.EngineOptions{URL: "unix://:" + secret + "@" + socket + "?db=1"})
	if err != nil {
		t.Fatalf("OpenEngine: %v", err)
	}
	defer e.Close()
	text := e.String()
	if strings.Contains(text, secret) || !strings.Contains(text, socket) || e.Kind() != queue.EngineRedis {
		t.Errorf("the engine describes itself as %q", text)
	}
	for _, user := range []string{"", ":wrong" + secret + "@", "nobody:" + secret + "@"} {
		_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: "unix://" + user + socket})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("with %q: %v, want an error without the password", user, err)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = queue.OpenEngine(t.Context(), queue.EngineOptions{URL: "redis://u:" + secret + "@" + address})
	if !errors.Is(err, queue.ErrUnavailable) || strings.Contains(err.Error(), secret) ||
		!strings.Contains(err.Error(), address) {
		t.Errorf("OpenEngine: %v, want ErrUnavailable with the address and without the password", err)
	}
}

func TestNoEngineSaysWhatToDo(t *testing.T) {
	_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{NoChild: true})
	if !errors.Is(err, queue.ErrNoEngine) || !strings.Contains(err.Error(), "SLUICE_REDIS_URL") {
		t.Errorf("without a child: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	_, err = queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: t.TempDir()})
	if !errors.Is(err, queue.ErrNoEngine) || !strings.Contains(err.Error(), "install redis-server") ||
		!strings.Contains(err.Error(), "sluice dev") {
		t.Errorf("without redis-server: %v", err)
	}
}

func TestEmbeddedSaysWhatItIs(t *testing.T) {
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, URL: "redis://ignored"})
	if err != nil {
		t.Fatal(err)
	}
	if e.Kind() != queue.EngineEmbedded || !strings.Contains(e.String(), "lost") {
		t.Errorf("%s: %s", e.Kind(), e)
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// TestDataThatDoesNotFitIsRefused: the number of shards and the schema are settled at the first
// start.
func TestDataThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	attempt := func(shards int) error {
		q, err := queue.Open(t.Context(), e, queue.Options{Shards: shards})
		if err == nil {
			err = q.Close()
		}
		return err
	}
	if err := attempt(8); err != nil {
		t.Fatalf("the first start: %v", err)
	}
	if err := attempt(8); err != nil {
		t.Errorf("the same settings again: %v", err)
	}
	if err := attempt(9); !errors.Is(err, queue.ErrSchema) || !strings.Contains(err.Error(), "8") ||
		!strings.Contains(err.Error(), "9") || !strings.Contains(err.Error(), "set store.shards to 8") {
		t.Errorf("another number of shards: %v, want ErrSchema with both and what to set", err)
	}
	if err := attempt(0); err != nil {
		t.Errorf("no number of shards, for that of the store: %v", err)
	}
	for _, n := range []int{-1, 1025} {
		if err := attempt(n); err == nil || errors.Is(err, queue.ErrSchema) {
			t.Errorf("%d shards: %v", n, err)
		}
	}
	c := client(t, url)
	for _, schema := range []int{6, 4, 3, 2, 1, 0} {
		if err := c.HSet(context.Background(), "sluice:meta", "schema", schema).Err(); err != nil {
			t.Fatal(err)
		}
		if err := attempt(8); !errors.Is(err, queue.ErrSchema) ||
			!strings.Contains(err.Error(), fmt.Sprint("schema ", schema)) {
			t.Errorf("schema %d: %v, want ErrSchema", schema, err)
		}
	}
}
