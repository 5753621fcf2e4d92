package engine

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// target is a parsed URL: one of the three is set.
type target struct {
	one      *redis.Options
	cluster  *redis.ClusterOptions
	sentinel *redis.FailoverOptions
	files    tlsFiles
}

// tlsFiles are the parameters of a URL with TLS that name files in PEM. Empty: not set.
type tlsFiles struct{ ca, cert, key string }

// parse checks a URL. Parsing has no effect: locate reads the files.
func parse(redisURL string) (t target, err error) {
	scheme, rest, _ := strings.Cut(redisURL, "://")
	base, kind, _ := strings.Cut(scheme, "+")
	switch scheme {
	case "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel":
	default:
		return t, errors.New("a Redis URL starts with redis://, rediss://, unix://, redis+cluster:// or " +
			"redis+sentinel://")
	}
	u, err := url.Parse(base + "://" + rest)
	if err != nil {
		return t, hideURL(err)
	}
	q := u.Query()
	take := func(name string) string {
		value := q.Get(name)
		q.Del(name)
		return value
	}
	t.files = tlsFiles{ca: take("tls_ca"), cert: take("tls_cert"), key: take("tls_key")}
	if t.files != (tlsFiles{}) && base != "rediss" {
		return t, errors.New("tls_ca, tls_cert and tls_key need rediss:// instead of redis://")
	}
	if (t.files.cert == "") != (t.files.key == "") {
		return t, errors.New("tls_cert and tls_key belong together: set both or neither")
	}
	sentinelUser, sentinelPassword := take("sentinel_username"), take("sentinel_password")
	u.RawQuery = q.Encode()
	switch kind {
	case "cluster":
		err = t.parseCluster(u)
	case "sentinel":
		err = t.parseSentinel(u)
		if err == nil {
			t.sentinel.SentinelUsername, t.sentinel.SentinelPassword = sentinelUser, sentinelPassword
		}
	default:
		err = t.parseOne(u)
	}
	if err == nil && kind != "sentinel" && sentinelUser+sentinelPassword != "" {
		err = errors.New("sentinel_username and sentinel_password need redis+sentinel://")
	}
	return t, err
}

func (t *target) parseOne(u *url.URL) (err error) {
	if t.one, err = redis.ParseURL(u.String()); err != nil {
		return hideURL(err)
	}
	if t.one.Addr == "" {
		return errors.New("a Redis URL needs a host")
	}
	return nil
}

func (t *target) parseCluster(u *url.URL) (err error) {
	if db := strings.Trim(u.Path, "/"); db != "" && db != "0" {
		return errors.New("a cluster has database 0 only: leave the path of the URL empty")
	}
	if t.cluster, err = redis.ParseClusterURL(u.String()); err != nil {
		return hideURL(err)
	}
	if o := t.cluster; o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
		return errFromReplicas
	}
	return nil
}

// errFromReplicas is the error of options that read from replicas, which may lag.
var errFromReplicas = errors.New("reads come from masters only: leave out read_only, replica_only, " +
	"route_by_latency and route_randomly")

func (t *target) parseSentinel(u *url.URL) (err error) {
	if t.sentinel, err = redis.ParseFailoverURL(u.String()); err != nil {
		return hideURL(err)
	}
	o := t.sentinel
	switch {
	case o.MasterName == "":
		return errors.New("a Sentinel URL needs the name of the master: ?master_name=NAME")
	case o.RouteByLatency || o.RouteRandomly || o.ReplicaOnly:
		return errFromReplicas
	case o.Username != "" || o.Password != "":
		return errors.New("the user and the password of Redis stand before the @ of the URL, not in " +
			"username and password; those of Sentinel are sentinel_username and sentinel_password")
	}
	// go-redis takes those before the @ for the ones of Sentinel.
	o.Username, o.Password = o.SentinelUsername, o.SentinelPassword
	return nil
}

// secure returns where the TLS settings are, which are nil without TLS.
func (t *target) secure() *tls.Config {
	switch {
	case t.one != nil:
		return t.one.TLSConfig
	case t.cluster != nil:
		return t.cluster.TLSConfig
	}
	return t.sentinel.TLSConfig
}

// locate parses a URL and reads its files. Errors: ErrNoEngine.
func locate(redisURL string) (target, error) {
	t, err := parse(redisURL)
	if err == nil {
		err = t.readFiles()
	}
	if err != nil {
		return t, fmt.Errorf("%w: redis.url: %w", ErrNoEngine, err)
	}
	return t, nil
}

// readFiles reads the files of the URL. A client certificate is read again for each connection, so
// that one that is renewed needs no restart.
func (t *target) readFiles() error {
	secure := t.secure()
	if t.files.ca != "" {
		text, err := os.ReadFile(t.files.ca)
		if err != nil {
			return fmt.Errorf("tls_ca: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("tls_ca: %s has no certificate in PEM", t.files.ca)
		}
	}
	if t.files.cert == "" {
		return nil
	}
	read := func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(t.files.cert, t.files.key)
		return &c, err
	}
	if _, err := read(); err != nil {
		return fmt.Errorf("tls_cert and tls_key: %w", err)
	}
	secure.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	return nil
}

// refusal is the alert by which the server ends a connection with TLS before any command, for
// example because it demands a client certificate; nil if there is none. With TLS 1.3 the handshake
// has ended by then, and a command that is written meanwhile gets "connection reset" instead.
func (t *target) refusal(ctx context.Context) error {
	addr := ""
	switch {
	case t.secure() == nil:
		return nil
	case t.one != nil:
		addr = t.one.Addr
	case t.cluster != nil:
		addr = t.cluster.Addrs[0]
	default:
		addr = t.sentinel.SentinelAddrs[0]
	}
	ctx, cancel := context.WithTimeout(ctx, failFast.dial)
	defer cancel()
	conn, err := (&tls.Dialer{Config: t.secure()}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it has served its purpose
	_ = conn.SetReadDeadline(time.Now().Add(failFast.answer))
	_, err = conn.Read(make([]byte, 1))
	return err
}

// client returns a client of the target.
func (t *target) client(p patience) redis.UniversalClient {
	switch {
	case t.one != nil:
		return oneRedis(*t.one, p, plain(p, t.one.TLSConfig))
	case t.cluster != nil:
		return newClusterClient(*t.cluster, p)
	}
	o := *t.sentinel
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = p.dial, p.answer+p.wait, p.answer, p.answer
	o.PoolSize, o.ContextTimeoutEnabled, o.DisableIdentity, o.Protocol = p.pool, true, true, protocol
	o.MaxRetries, o.Dialer = p.retries, plain(p, o.TLSConfig).orUnconnected()
	c := redis.NewFailoverClient(&o)
	c.AddHook(newBulk(p))
	return c
}

// ParseURL checks a URL. Its errors have no secrets.
func ParseURL(redisURL string) error {
	_, err := parse(redisURL)
	return err
}

// hideURL keeps a password in a URL that cannot be parsed out of messages.
func hideURL(err error) error {
	var quoted *url.Error // which repeats the whole URL
	if errors.As(err, &quoted) || strings.Contains(err.Error(), "@") {
		return errors.New("not a Redis URL (not shown, for it may hold a password)")
	}
	return fmt.Errorf("not a Redis URL: %w", err)
}

// address is a parsable URL without its user, password and options.
func address(redisURL string) string {
	u, err := url.Parse(redisURL)
	if err != nil {
		return "an unknown address"
	}
	return u.Host + u.Path
}
