package queue_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// rights are those of docs/redis.md, and those that it adds after each of the lines.
func rights(t *testing.T, more ...string) *redistest.Rights {
	t.Helper()
	const page = "../docs/redis.md"
	rules := redistest.RulesOf(t, page, "## Rights")
	for _, line := range more {
		rules = append(rules, redistest.RulesOf(t, page, line)...)
	}
	return &redistest.Rights{Rules: rules}
}

// allUsed fails the test for each command that the lines of docs/redis.md add and nobody has used.
func allUsed(t *testing.T, r *redistest.Rights, lines ...string) {
	t.Helper()
	for _, rule := range rights(t, lines...).Rules[len(rights(t).Rules):] {
		if name, isCommand := strings.CutPrefix(rule, "+"); isCommand && !r.Used(name) {
			t.Errorf("%s is not used, so it need not be allowed", name)
		}
	}
}

const (
	durableRights         = "# with redis.durability; with fsync: true, +waitaof in the place of +wait"
	clusterRights         = "# in a cluster, on each node"
	failoverRights        = "# for sluice redis failover with Sentinel, on each server"
	clusterFailoverRights = "# for sluice redis failover in a cluster, on each node"
	sentinelRights        = "# on each Sentinel"
	ofSentinels           = "# for sluice redis failover, on each Sentinel"
)

func submitOne(t *testing.T, q *queue.Queue) {
	t.Helper()
	if d, err := q.Submit(t.Context(), work()); err != nil || d.Outcome != shaper.Admitted {
		t.Errorf("Submit: %v, %v", d.Outcome, err)
	}
}

// TestRightsOfDurability: WAIT and CONFIG GET suffice.
func TestRightsOfDurability(t *testing.T) {
	t.Parallel()
	r := rights(t, durableRights)
	t.Run("", func(t *testing.T) {
		master, _ := replicated(t, 1, strings.Fields(minReplicas)...)
		o := durable(master, 1)
		o.URL, o.Durability.Timeout = r.Restrict(t, master), 10*time.Second
		submitOne(t, open(t, o, defaults))
	})
	allUsed(t, r, durableRights)
}

// TestRightsAtTheStart: a user that lacks one command is refused at the start, which names it, also
// where the command is seldom used. Nothing is written meanwhile.
func TestRightsAtTheStart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := client(t, server.URL())
	do := func(args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	all := []any{"acl", "setuser", "u", "reset", "resetchannels", "on", ">p"}
	for _, rule := range rights(t).Rules {
		all = append(all, rule)
	}
	for _, rule := range rights(t).Rules {
		name, isCommand := strings.CutPrefix(rule, "+")
		if isCommand && name == "bgrewriteaof" {
			continue
		}
		do(all...)
		switch {
		case isCommand:
			do("acl", "setuser", "u", "-"+name)
		case strings.Contains(rule, "asynq"): // of callbacks and of asynq's fleets alone
			continue
		case rule[0] == '&':
			name, _ = "channels", c.Do(t.Context(), "acl", "setuser", "u", "resetchannels").Err()
		default:
			name, _ = "keys", c.Do(t.Context(), "acl", "setuser", "u", "resetkeys").Err()
		}
		_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
			URL: strings.Replace(server.URL(), "://", "://u:p@", 1), AllowUnsafe: true, Logger: slog.New(slog.DiscardHandler),
		})
		if !errors.Is(err, queue.ErrNoEngine) || !strings.Contains(err.Error(), "lacks a right") ||
			!regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).MatchString(err.Error()) {
			t.Errorf("without %s: %v", rule, err)
		}
	}
	if n := c.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are stored", n)
	}
}

// TestCommandsAtTheStart: a Redis that has renamed commands is refused by their names, and nothing
// is carried out where these are the commands of the question itself.
func TestCommandsAtTheStart(t *testing.T) {
	t.Parallel()
	for _, renamed := range [][]string{
		{"rename"}, {"xrevrange", "setrange"}, {"multi", "subscribe", "ssubscribe"}, {"multi"}, {"watch"},
	} {
		t.Run(strings.Join(renamed, " "), func(t *testing.T) {
			t.Parallel()
			var args []string
			for _, name := range renamed {
				args = append(args, "--rename-command", name, "")
			}
			server := redistest.Start(t, args...)
			c := client(t, server.URL())
			if err := c.Set(t.Context(), "sluice:rights", "precious", 0).Err(); err != nil {
				t.Fatal(err)
			}
			_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
				URL: server.URL(), AllowUnsafe: true, Logger: slog.New(slog.DiscardHandler),
			})
			if !errors.Is(err, queue.ErrNoEngine) || !strings.Contains(err.Error(), "renamed it") ||
				!strings.Contains(err.Error(), renamed[0]) {
				t.Errorf("%v", err)
			}
			if text := c.Get(t.Context(), "sluice:rights").Val(); text != "precious" {
				t.Errorf("the value has become %q", text)
			}
		})
	}
}

// TestConfigDenied: where CONFIG is denied, as on managed services, the start goes on and says what
// it could not check.
func TestConfigDenied(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"renamed": {"--rename-command", "CONFIG", ""}, "no right": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, _ := replicated(t, 1, append(strings.Fields(minReplicas), args...)...)
			o := durable(master, 1)
			o.Durability.Timeout = 10 * time.Second
			if args == nil {
				c := client(t, master.URL())
				if err := c.Do(t.Context(), "acl", "setuser", "u", "on", ">p", "~*", "&*", "+@all", "-config").Err(); err != nil {
					t.Fatal(err)
				}
				o.URL = strings.Replace(o.URL, "://", "://u:p@", 1)
			}
			var log queuetest.Log
			o.Logger = log.Logger(slog.LevelInfo)
			submitOne(t, open(t, o, defaults))
			for _, part := range []string{
				"level=WARN", "cannot be read (CONFIG GET)", "min-replicas-to-write=1", "min-replicas-max-lag=2",
			} {
				if !strings.Contains(log.String(), part) {
					t.Errorf("the log lacks %q", part)
				}
			}
		})
	}
	t.Run("without durability", func(t *testing.T) {
		t.Parallel()
		var log queuetest.Log
		s := redistest.Start(t, "--rename-command", "CONFIG", "")
		submitOne(t, open(t, queue.EngineOptions{URL: s.URL(), Logger: log.Logger(slog.LevelInfo)}, defaults))
		if strings.Contains(log.String(), "CONFIG") {
			t.Error("nothing is needed of CONFIG, yet the log names it")
		}
	})
}

// TestRightsInACluster: what docs/redis.md adds for a cluster suffices, also while a slot moves and
// for a planned failover.
func TestRightsInACluster(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	r := rights(t, clusterRights, clusterFailoverRights)
	t.Run("", func(t *testing.T) {
		c := redistest.StartCluster(t)
		replicas := c.AddReplicas(t.Context())
		for node := range 2 {
			r.Grant(t, &redis.Options{Addr: c.Address(node)})
			r.Grant(t, &redis.Options{Network: "unix", Addr: strings.TrimPrefix(replicas[node].URL(), "unix://")})
		}
		q := open(t, queue.EngineOptions{URL: r.URL(c.URL()), Logger: slog.New(slog.DiscardHandler)}, defaults)
		submitOne(t, q)
		slot, err := client(t, replicas[0].URL()).ClusterKeySlot(t.Context(), store.NewKeyspace(4).ShardOf("acme").Clock()).Result()
		if err != nil {
			t.Fatal(err)
		}
		c.Move(t.Context(), int(slot), func() { _, _ = q.Submit(t.Context(), work()) }) // refused in between
		submitOne(t, q)
		out, err := queue.FailOver(t.Context(), queue.FailoverOptions{
			URL: r.URL(c.URL()), Master: c.Address(0), Step: func(string) {},
		})
		if err != nil {
			t.Errorf("%+v, %v", out, err)
		}
	})
	allUsed(t, r, clusterRights, clusterFailoverRights)
}

// TestRightsOfAFailover: what docs/redis.md adds for Sentinel suffices.
func TestRightsOfAFailover(t *testing.T) {
	t.Parallel()
	r := rights(t, failoverRights)
	ofSentinel := &redistest.Rights{Rules: slices.Concat(
		redistest.RulesOf(t, "../docs/redis.md", sentinelRights), redistest.RulesOf(t, "../docs/redis.md", ofSentinels))}
	t.Run("", func(t *testing.T) {
		url, servers := sentinelled(t)
		for _, s := range servers {
			r.Grant(t, &redis.Options{Network: "unix", Addr: strings.TrimPrefix(s.URL(), "unix://")})
		}
		at, _, _ := strings.Cut(strings.TrimPrefix(url, "redis+sentinel://"), "?")
		admin := ofSentinel.Grant(t, &redis.Options{Addr: at})
		if err := admin.Do(context.Background(), "acl", "setuser", "default", "off").Err(); err != nil {
			t.Fatal(err)
		}
		url = r.URL(url) + "&sentinel_username=limited&sentinel_password=secret"
		submitOne(t, open(t, queue.EngineOptions{URL: url, Logger: slog.New(slog.DiscardHandler)}, defaults))
		if _, err := queue.FailOver(t.Context(), queue.FailoverOptions{URL: url, Step: func(string) {}}); err != nil {
			t.Error(err)
		}
		denied, err := admin.ACLLog(context.Background(), 10).Result()
		for _, d := range denied {
			t.Errorf("a Sentinel denied %s", d.Object)
		}
		if err != nil {
			t.Error(err)
		}
	})
	allUsed(t, r, failoverRights)
}
