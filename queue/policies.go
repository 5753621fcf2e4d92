package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// filePolicies are the defaults, tiers and routes that are in force, whichever process's file they are from.
type filePolicies struct {
	baseline shaper.Baseline
	encoded  string // empty of a reporter: the scripts take what is in force in the shard
	revision int64
}

// policyFile is the part of a configuration file that is about policies.
type policyFile struct {
	baseline shaper.Baseline
	tenants  map[string]shaper.Overrides
	text     string // of the baseline, as it is stored
	digest   string // of both
}

func newPolicyFile(baseline shaper.Baseline, tenants map[string]shaper.Overrides) (*policyFile, error) {
	text, err := json.Marshal(baseline)
	if err != nil {
		return nil, fmt.Errorf("queue: encode the policies: %w", err)
	}
	named, err := json.Marshal(tenants)
	if err != nil {
		return nil, fmt.Errorf("queue: encode the policies: %w", err)
	}
	sum := sha256.Sum256(append(append([]byte{}, text...), named...))
	return &policyFile{baseline: baseline, tenants: tenants, text: string(text), digest: hex.EncodeToString(sum[:8])}, nil
}

// Fields of the meta key.
const (
	metaPolicies = "policies"          // the baseline
	metaRevision = "policies_revision" // the highest is in force
	metaDigest   = "policies_digest"   // of the file that they are from
	metaBorn     = "born"              // when the store was first used
)

// SetPolicies puts other policies of a configuration file into force, for all processes at this Redis: the baseline, and the settings of
// single tenants. Tenants that the file named before and names no more lose its settings. Backlogs obey at once. The policies must be valid.
// Until the next call of any process nothing changes them: a process with another file follows, and says so. Errors: ErrUnavailable; then a
// part of them may be in force.
func (q *Queue) SetPolicies(ctx context.Context, baseline shaper.Baseline, tenants map[string]shaper.Overrides) error {
	q.publish.Lock()
	defer q.publish.Unlock()
	if q.reporter {
		q.policies.Store(&filePolicies{baseline: baseline})
		return nil
	}
	file, err := newPolicyFile(baseline, tenants)
	if err != nil {
		return err
	}
	q.file.Store(file)
	p := &filePolicies{baseline: baseline, encoded: lua.EncodeBaseline(baseline)}
	if p.revision, err = q.record(ctx, file); err != nil {
		q.policies.CompareAndSwap(nil, p)
		return err
	}
	q.policies.Store(p)
	if err := q.declare(ctx, p); err != nil {
		return err
	}
	return q.publishFile(ctx, tenants)
}

// recordTries bounds how often a record is written anew because other processes were faster.
const recordTries = 20

// record notes that the file is in force and returns the revision of its policies: the one they have, if they are in force already. Revisions
// follow Redis's clock, so that they grow even after the record was lost.
func (q *Queue) record(ctx context.Context, file *policyFile) (revision int64, err error) {
	once := func(tx *redis.Tx) error {
		found, err := readRecord(ctx, tx)
		if err != nil {
			return err
		}
		if revision = found.Revision; revision > 0 && found.Digest == file.digest && found.Policies == file.text {
			return nil
		}
		now, err := tx.Time(ctx).Result()
		if err != nil {
			return err
		}
		revision = max(revision+1, now.UnixMicro())
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.HSet(ctx, metaKey, metaPolicies, file.text, metaDigest, file.digest, metaRevision, strconv.FormatInt(revision, 10))
			return nil
		})
		return err
	}
	for range recordTries {
		if err = q.engine.patient.Watch(ctx, once, metaKey); !errors.Is(err, redis.TxFailedErr) {
			return revision, unavailable(err)
		}
	}
	return 0, fmt.Errorf("%w: too many concurrent changes of the policies", ErrUnavailable)
}

// policyRecord says which policies are in force.
type policyRecord struct {
	Policies string `redis:"policies"`
	Digest   string `redis:"policies_digest"`
	Revision int64  `redis:"policies_revision"`
}

func readRecord(ctx context.Context, c redis.HashCmdable) (r policyRecord, err error) {
	err = c.HMGet(ctx, metaKey, metaPolicies, metaDigest, metaRevision).Scan(&r)
	return r, err
}

// declare puts the baseline into force in every shard that has an older one.
func (q *Queue) declare(ctx context.Context, p *filePolicies) error {
	calls := make([]lua.Call, q.keys.Len())
	for i := range calls {
		calls[i] = lua.DeclareCall{Clock: q.keys.Shard(i).Clock(), Revision: p.revision, Baseline: p.encoded}.Call()
	}
	for _, r := range lua.RunAll(ctx, q.engine.patient, q.observe, calls) {
		if r.Err != nil {
			return unavailable(r.Err)
		}
	}
	return nil
}

// follow takes over the policies that another process has put into force.
func (q *Queue) follow(ctx context.Context) error {
	q.publish.Lock()
	defer q.publish.Unlock()
	found, err := readRecord(ctx, q.engine.patient)
	if err != nil {
		return unavailable(err)
	}
	if found.Revision == 0 || found.Revision == q.policies.Load().revision {
		return nil
	}
	var baseline shaper.Baseline
	if err := json.Unmarshal([]byte(found.Policies), &baseline); err != nil {
		return fmt.Errorf("%w: the policies in force cannot be read by this version: %w", ErrSchema, err)
	}
	p := &filePolicies{baseline: baseline, encoded: lua.EncodeBaseline(baseline), revision: found.Revision}
	if err := q.declare(ctx, p); err != nil { // the process that recorded them may have ended before it reached every shard
		return err
	}
	q.policies.Store(p)
	return nil
}
