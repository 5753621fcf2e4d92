package engine

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// Bounds of a planned failover.
const (
	pauseWrites  = 8 * time.Second // after which Redis writes again, whatever becomes of us
	catchUp      = 4 * time.Second // within which the replicas must have all writes
	failoverMost = 20 * time.Second
	failoverPoll = 20 * time.Millisecond
)

// ErrFailover is the error of a planned failover; its text says what to do.
var ErrFailover = errors.New("queue: the failover failed")

// FailoverOptions are those of a planned failover.
type FailoverOptions struct {
	URL    string
	Master string            // HOST:PORT of the master to replace; required in a cluster
	Step   func(text string) // is called before each step
}

// Failover is the result of a planned failover.
type Failover struct {
	From   string        `json:"from"` // address of the former master
	To     string        `json:"to"`
	Paused time.Duration `json:"paused_ns"` // how long writes were paused; 0 in a cluster, where Redis pauses them
}

// FailOver has a replica take over from a master without the loss of a write. With Sentinel it
// pauses writes until the replicas have all of them. The replica of a cluster does so itself
// (CLUSTER FAILOVER). Errors: ErrNoEngine, ErrFailover.
func FailOver(ctx context.Context, o FailoverOptions) (Failover, error) {
	t, err := locate(o.URL)
	switch {
	case err != nil:
		return Failover{}, err
	case t.sentinel != nil:
		return (&sentinelFailover{FailoverOptions: o, opt: t.sentinel}).run(ctx)
	case t.cluster != nil:
		return clusterFailover(ctx, o, t.cluster)
	}
	return Failover{}, fmt.Errorf("%w: redis.url must name Sentinel (redis+sentinel://) or a cluster "+
		"(redis+cluster://): nothing else can make a replica the master and tell the clients", ErrNoEngine)
}

// one returns a client of one server.
func one(addr, username, password string, secure *tls.Config) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, Username: username, Password: password, TLSConfig: secure, Protocol: protocol, MaxRetries: -1,
		DialTimeout: time.Second, ReadTimeout: 2 * time.Second, DisableIdentity: true, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: noNotifications,
	})
}

// replication reads what a server reports of its replication.
func replication(ctx context.Context, c *redis.Client) (map[string]string, error) {
	info, err := c.Info(ctx, "replication").Result()
	return infoFields(info), err
}

// sentinelFailover is a failover by Sentinel.
type sentinelFailover struct {
	FailoverOptions
	opt      *redis.FailoverOptions
	sentinel *redis.SentinelClient
	master   *redis.Client
	addr     string // of the master
}

func (f *sentinelFailover) run(ctx context.Context) (out Failover, err error) {
	ctx, cancel := context.WithTimeout(ctx, failoverMost)
	defer cancel()
	if err := f.find(ctx); err != nil {
		return out, err
	}
	defer func() { _, _ = f.sentinel.Close(), f.master.Close() }()
	out.From = f.addr
	if f.Master != "" && f.Master != f.addr {
		return out, fmt.Errorf("%w: the master is %s, not %s; nothing was changed", ErrFailover, f.addr, f.Master)
	}
	f.Step("checking the replicas of " + f.addr)
	count, err := f.ready(ctx)
	if err != nil {
		return out, fmt.Errorf("%w: %w; nothing was changed", ErrFailover, err)
	}
	f.Step("pausing writes")
	// A write that the replicas do not have yet, so that one which hangs is found out.
	if err := f.master.Publish(ctx, store.WorkersWake, "").Err(); err != nil {
		return out, fmt.Errorf("%w: PUBLISH: %w; nothing was changed", ErrFailover, err)
	}
	paused := time.Now()
	if err := f.pause(ctx); err != nil {
		return out, fmt.Errorf("%w: CLIENT PAUSE: %w; Redis 6.2 and the right to CLIENT are needed; "+
			"nothing was changed", ErrFailover, err)
	}
	resume := func() { // also where ctx has ended
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = f.master.Do(ctx, "client", "unpause").Err() // else the pause runs out
	}
	f.Step("waiting until " + strconv.Itoa(count) + " replicas have all writes")
	if err := f.caughtUp(ctx, count); err != nil {
		resume()
		return out, fmt.Errorf("%w: %w; writes go on at %s, nothing was changed", ErrFailover, err, f.addr)
	}
	f.Step("failing over")
	if err := f.sentinel.Failover(ctx, f.opt.MasterName).Err(); err != nil {
		resume()
		return out, fmt.Errorf("%w: SENTINEL FAILOVER: %w; writes go on at %s, nothing was changed", ErrFailover, err, f.addr)
	}
	if out.To, err = f.await(ctx); err == nil {
		f.Step("making " + f.addr + " a replica of " + out.To)
		out.Paused = time.Since(paused)
		err = f.demote(ctx, out.To)
	}
	if err != nil {
		return out, fmt.Errorf("%w: %w; see SENTINEL MASTER %s and the logs of the sentinels", ErrFailover, err, f.opt.MasterName)
	}
	resume()
	return out, nil
}

// find connects to the first sentinel that answers, and to the master that it names.
func (f *sentinelFailover) find(ctx context.Context) error {
	var failed error
	for _, at := range f.opt.SentinelAddrs {
		o := one(at, f.opt.SentinelUsername, f.opt.SentinelPassword, f.opt.TLSConfig).Options()
		s := redis.NewSentinelClient(o)
		addr, err := s.GetMasterAddrByName(ctx, f.opt.MasterName).Result()
		if err == nil && len(addr) == 2 {
			f.sentinel, f.addr = s, net.JoinHostPort(addr[0], addr[1])
			f.master = one(f.addr, f.opt.Username, f.opt.Password, f.opt.TLSConfig)
			return nil
		}
		if errors.Is(err, redis.Nil) {
			err = fmt.Errorf("it knows no master %q: set ?master_name= in redis.url", f.opt.MasterName)
		}
		failed = errors.Join(failed, fmt.Errorf("sentinel %s: %w", at, err), s.Close())
	}
	return fmt.Errorf("%w: no sentinel answers: %w", ErrFailover, failed)
}

// ready returns the number of replicas. It fails where a failover would, or where Sentinel may
// choose a replica that is not in sync.
func (f *sentinelFailover) ready(ctx context.Context) (count int, err error) {
	if err := f.sentinel.CkQuorum(ctx, f.opt.MasterName).Err(); err != nil {
		return 0, fmt.Errorf("SENTINEL CKQUORUM: %w", err)
	}
	listed, err := f.sentinel.Replicas(ctx, f.opt.MasterName).Result()
	if err != nil {
		return 0, fmt.Errorf("SENTINEL REPLICAS: %w", err)
	}
	fields, err := replication(ctx, f.master)
	if err != nil {
		return 0, fmt.Errorf("read the replicas of %s: %w", f.addr, err)
	}
	if fields["role"] != "master" {
		return 0, fmt.Errorf("%s is no master at the moment", f.addr)
	}
	good := 0
	for _, r := range listed {
		if r["slave-priority"] == "0" || strings.Contains(r["flags"], "down") {
			continue // Sentinel does not choose it
		}
		if r["master-link-status"] != "ok" {
			return 0, fmt.Errorf("replica %s:%s is not in sync, and Sentinel may choose it: wait until it is, or "+
				"set its replica-priority to 0", r["ip"], r["port"])
		}
		good++
	}
	count = len(offsetsIn(fields))
	if good == 0 || count < good {
		return 0, fmt.Errorf("%d replicas may be chosen by Sentinel, and %d are connected to %s: connect a replica and "+
			"wait until it is in sync", good, count, f.addr)
	}
	return count, nil
}

// offsetsIn returns how far each connected replica has acknowledged the writes of the master.
func offsetsIn(fields map[string]string) (offsets []int64) {
	for name, value := range fields {
		number, found := strings.CutPrefix(name, "slave")
		if _, err := strconv.Atoi(number); !found || err != nil || !strings.Contains(value, "state=online") {
			continue
		}
		_, text, _ := strings.Cut(value, ",offset=")
		text, _, _ = strings.Cut(text, ",")
		if offset, err := strconv.ParseInt(text, 10, 64); err == nil {
			offsets = append(offsets, offset)
		}
	}
	return offsets
}

func (f *sentinelFailover) pause(ctx context.Context) error {
	return f.master.Do(ctx, "client", "pause", pauseWrites.Milliseconds(), "write").Err()
}

// caughtUp waits until the replicas have what the master had written when it paused.
func (f *sentinelFailover) caughtUp(ctx context.Context, count int) error {
	want := int64(-1)
	for end := time.Now().Add(catchUp); ; {
		_ = f.master.Wait(ctx, count, 5*failoverPoll).Err() // has them acknowledge at once
		fields, err := replication(ctx, f.master)
		if err != nil {
			return fmt.Errorf("read the offsets: %w", err)
		}
		if want < 0 {
			if want, err = strconv.ParseInt(fields["master_repl_offset"], 10, 64); err != nil {
				return fmt.Errorf("read the offsets: %w", err)
			}
		}
		have := 0
		for _, offset := range offsetsIn(fields) {
			if offset >= want {
				have++
			}
		}
		if have >= count {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d replicas have all writes after %v: they are too slow, or gone", have, count, catchUp)
		}
		if err := sleep(ctx, failoverPoll); err != nil {
			return err
		}
	}
}

// await waits until another server is the master, and keeps writes paused at the old one.
func (f *sentinelFailover) await(ctx context.Context) (to string, err error) {
	for again := time.Now().Add(pauseWrites / 4); ; {
		addr, err := f.sentinel.GetMasterAddrByName(ctx, f.opt.MasterName).Result()
		if err == nil && len(addr) == 2 {
			if to = net.JoinHostPort(addr[0], addr[1]); to != f.addr && f.isMaster(ctx, to) {
				return to, nil
			}
		}
		if now := time.Now(); now.After(again) {
			again = now.Add(pauseWrites / 4)
			_ = f.pause(ctx) // one that is a replica by now may close the connection
		}
		if sleep(ctx, failoverPoll) != nil {
			return "", fmt.Errorf("no replica has taken over from %s in time", f.addr)
		}
	}
}

// demote makes the former master a replica and closes the connections of its clients. Sentinel does
// so after eight seconds, and until then it would accept writes again.
func (f *sentinelFailover) demote(ctx context.Context, to string) error {
	host, port, _ := net.SplitHostPort(to) // it has been joined
	asked := f.master.ReplicaOf(ctx, host, port).Err()
	for {
		fields, err := replication(ctx, f.master)
		if err == nil && fields["role"] == "slave" {
			// They ask Sentinel for the master when they connect again.
			_ = f.master.ClientKillByFilter(ctx, "type", "normal", "skipme", "yes").Err() // else they get READONLY
			return nil
		}
		_ = f.pause(ctx) // the next try may get through
		if sleep(ctx, failoverPoll) != nil {
			return fmt.Errorf("%s has taken over, but %s is no replica of it yet (%w), and may accept writes "+
				"that are lost: stop it", to, f.addr, cmp.Or(asked, err, errors.New("it is still a master")))
		}
	}
}

func (f *sentinelFailover) isMaster(ctx context.Context, addr string) bool {
	c := one(addr, f.opt.Username, f.opt.Password, f.opt.TLSConfig)
	defer func() { _ = c.Close() }()
	fields, err := replication(ctx, c)
	return err == nil && fields["role"] == "master"
}

// clusterFailover has a replica of a master of a cluster take over.
func clusterFailover(ctx context.Context, o FailoverOptions, opt *redis.ClusterOptions) (out Failover, err error) {
	ctx, cancel := context.WithTimeout(ctx, failoverMost)
	defer cancel()
	connect := func(addr string) *redis.Client { return one(addr, opt.Username, opt.Password, opt.TLSConfig) }
	master := connect(o.Master)
	defer func() { _ = master.Close() }()
	if o.Master == "" {
		return out, fmt.Errorf("%w: name the master of the cluster to replace, with --master HOST:PORT", ErrNoEngine)
	}
	out.From = o.Master
	o.Step("checking the replicas of " + o.Master)
	fields, err := replication(ctx, master)
	if err == nil && fields["role"] != "master" {
		err = errors.New("it is a replica")
	}
	if err != nil {
		return out, fmt.Errorf("%w: %s is no master that answers: %w; CLUSTER NODES lists the masters; nothing was changed",
			ErrFailover, o.Master, err)
	}
	best := int64(-1)
	for name, value := range fields {
		number, found := strings.CutPrefix(name, "slave")
		if _, err := strconv.Atoi(number); !found || err != nil || !strings.Contains(value, "state=online") {
			continue
		}
		entry := map[string]string{}
		for part := range strings.SplitSeq(value, ",") {
			key, v, _ := strings.Cut(part, "=")
			entry[key] = v
		}
		if offset, err := strconv.ParseInt(entry["offset"], 10, 64); err == nil && offset > best {
			best, out.To = offset, net.JoinHostPort(entry["ip"], entry["port"])
		}
	}
	if best < 0 {
		return out, fmt.Errorf("%w: %s has no replica in sync; nothing was changed", ErrFailover, o.Master)
	}
	replica := connect(out.To)
	defer func() { _ = replica.Close() }()
	o.Step("failing over to " + out.To)
	if err := replica.ClusterFailover(ctx).Err(); err != nil {
		return out, fmt.Errorf("%w: CLUSTER FAILOVER at %s: %w; nothing was changed", ErrFailover, out.To, err)
	}
	if !becomes(ctx, replica, "master") {
		return out, fmt.Errorf("%w: %s has not taken over in time; Redis gives such a failover up, and %s goes on: "+
			"see CLUSTER NODES and the log of %[2]s", ErrFailover, out.To, o.Master)
	}
	if !becomes(ctx, master, "slave") { // it hears of its successor a moment later
		return out, fmt.Errorf("%w: %s has taken over, but %s is no replica of it yet: see CLUSTER NODES and the log of %[3]s",
			ErrFailover, out.To, o.Master)
	}
	return out, nil
}

// becomes waits until a server has a role. It reports false where ctx ends before.
func becomes(ctx context.Context, c *redis.Client, role string) bool {
	for {
		if fields, err := replication(ctx, c); err == nil && fields["role"] == role {
			return true
		}
		if sleep(ctx, failoverPoll) != nil {
			return false
		}
	}
}

// sleep waits for d, or returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
