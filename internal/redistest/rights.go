package redistest

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Rights is a user with limited rights, and which of them were used.
type Rights struct {
	Rules []string // as ACL SETUSER takes them

	mu       sync.Mutex
	commands map[string]bool
}

const (
	limited, password = "limited", "secret"
	admin             = "admin"
)

// RulesOf returns the rules of the first ACL SETUSER after a line of a page. Those that follow from
// the name of the user are left out.
func RulesOf(t testing.TB, page, line string) (rules []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+line+"\n")
	_, rest, _ = strings.Cut(rest, "ACL SETUSER sluice ")
	rest, _, _ = strings.Cut(strings.ReplaceAll(rest, "\\\n", " "), "\n")
	for word := range strings.FieldsSeq(rest) {
		if rule := strings.Trim(word, "'"); strings.ContainsAny(rule[:1], "~&+") {
			rules = append(rules, rule)
		}
	}
	if len(rules) == 0 {
		t.Fatalf("%s has no ACL SETUSER after %q", page, line)
	}
	return rules
}

// URL returns the URL with the name of the user and the password.
func (r *Rights) URL(plain string) string {
	return strings.Replace(plain, "://", "://"+limited+":"+password+"@", 1)
}

// Restrict is Grant, and turns the default user off until the end of the test. It returns the URL
// for the user.
func (r *Rights) Restrict(t testing.TB, s *Server) (url string) {
	t.Helper()
	c := r.Grant(t, &redis.Options{Network: "unix", Addr: s.socket})
	do(t, c, "acl", "setuser", "default", "off")
	t.Cleanup(func() { do(t, c, "acl", "setuser", "default", "on") })
	return r.URL(s.URL())
}

// Grant gives a server the user until the end of the test, and returns a client with all rights.
// Commands of the user that are denied fail the test.
func (r *Rights) Grant(t testing.TB, server *redis.Options) *redis.Client {
	t.Helper()
	o := *server
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	first := redis.NewClient(&o)
	defer func() { _ = first.Close() }()
	do(t, first, "acl", "setuser", admin, "reset", "on", ">"+password, "~*", "&*", "+@all")
	o.Username, o.Password = admin, password
	c := redis.NewClient(&o)
	user := []any{"acl", "setuser", limited, "reset", "resetchannels", "on", ">" + password}
	for _, rule := range r.Rules {
		if !ofSharded[rule] || versionOf(t, c) >= 7 {
			user = append(user, rule)
		}
	}
	if versionOf(t, c) < 7 {
		user = append(user, "+unsubscribe") // docs/redis.md says so
	}
	do(t, c, user...)
	do(t, c, "acl", "log", "reset")
	t.Cleanup(func() { _ = c.Close() })
	if strings.Contains(c.Info(context.Background(), "server").Val(), "_mode:sentinel") {
		return c
	}
	do(t, c, "config", "resetstat")
	t.Cleanup(func() {
		r.collect(t, c)
		do(t, c, "acl", "deluser", limited)
	})
	return c
}

// ofSharded are the rights to the commands of sharded channels.
var ofSharded = map[string]bool{"+spublish": true, "+ssubscribe": true, "+sunsubscribe": true}

// versionOf is the major version of a server.
func versionOf(t testing.TB, c *redis.Client) int {
	t.Helper()
	info, err := c.Info(context.Background(), "server").Result()
	_, after, _ := strings.Cut(info, "redis_version:")
	major, _, _ := strings.Cut(after, ".")
	version, err2 := strconv.Atoi(major)
	if err != nil || err2 != nil {
		t.Errorf("the version of a server: %v, %v", err, err2)
	}
	return version
}

// do sends a command, also after the test.
func do(t testing.TB, c *redis.Client, args ...any) {
	t.Helper()
	if err := c.Do(context.Background(), args...).Err(); err != nil {
		t.Errorf("%v: %v", args, err)
	}
}

// collect notes the commands that were executed, and fails the test for those that were denied.
func (r *Rights) collect(t testing.TB, c *redis.Client) {
	t.Helper()
	ctx := context.Background()
	denied, err := c.ACLLog(ctx, 10).Result()
	for _, d := range denied {
		t.Errorf("denied by its %s: %s", d.Reason, d.Object)
	}
	stats, err2 := c.Info(ctx, "commandstats").Result()
	if err != nil || err2 != nil {
		t.Errorf("ACL LOG: %v; INFO: %v", err, err2)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(stats) {
		name, figures, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if strings.HasPrefix(line, "cmdstat_") && !strings.HasPrefix(figures, "calls=0,") {
			if r.commands == nil {
				r.commands = map[string]bool{}
			}
			r.commands[name] = true
		}
	}
}

// Used reports whether the command, such as get or script|load, was executed on a server whose test
// has ended. Redis 6.2 counts it as script.
func (r *Rights) Used(command string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	name, _, _ := strings.Cut(command, "|")
	return r.commands[command] || r.commands[name]
}
