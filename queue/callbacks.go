package queue

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
)

// CallbackKind is how a secret signs callbacks (Standard Webhooks).
type CallbackKind string

// The kinds.
const (
	CallbackHMAC    CallbackKind = "hmac"    // signature v1, HMAC-SHA-256: the receiver has the secret
	CallbackEd25519 CallbackKind = "ed25519" // signature v1a: the receiver has the public key
)

// CallbackKey is 32 bytes: the secret of an HMAC, or the seed of an Ed25519 key. Its text is fixed,
// so that no log shows it by accident.
type CallbackKey []byte

// String returns a fixed text.
func (CallbackKey) String() string { return "(hidden)" }

// GoString returns a fixed text.
func (CallbackKey) GoString() string { return "(hidden)" }

// CallbackSecret signs the callbacks of a tenant.
type CallbackSecret struct {
	ID      string // 28 characters of [0-9a-v], as of an API key
	Kind    CallbackKind
	Key     CallbackKey `json:"-"`
	Created time.Time   // by the clock of the process that made it, to the millisecond
	By      string      // name of the operator who made it
}

// Secret returns the secret of an HMAC as Standard Webhooks writes it; empty for an Ed25519 key,
// which only signs.
func (s CallbackSecret) Secret() string {
	if s.Kind != CallbackHMAC {
		return ""
	}
	return "whsec_" + base64.StdEncoding.EncodeToString(s.Key)
}

// PublicKey returns the public key as Standard Webhooks writes it; empty for an HMAC.
func (s CallbackSecret) PublicKey() string {
	if s.Kind != CallbackEd25519 {
		return ""
	}
	public, _ := ed25519.NewKeyFromSeed(s.Key).Public().(ed25519.PublicKey)
	return "whpk_" + base64.StdEncoding.EncodeToString(public)
}

// Sign returns the signature of a text as Standard Webhooks writes it. The text is the id, the
// timestamp and the body of a request, joined by dots.
func (s CallbackSecret) Sign(text []byte) string {
	if s.Kind == CallbackEd25519 {
		return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(ed25519.NewKeyFromSeed(s.Key), text))
	}
	mac := hmac.New(sha256.New, s.Key)
	_, _ = mac.Write(text) // never fails
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// TenantCallbacks are the secrets and endpoints that a tenant has of its own for its callbacks.
type TenantCallbacks struct {
	Secrets   []CallbackSecret // the newest first; none: those of all tenants sign
	Endpoints []string         // prefixes of URLs that its callbacks may go to
}

const (
	// MaxCallbackSecrets is how many secrets a tenant may have: one, and its successor.
	MaxCallbackSecrets = 2
	// MaxCallbackEndpoints is how many endpoints a tenant may have.
	MaxCallbackEndpoints = 50
	// callbackChanges is how often a change is tried while others change the same tenant.
	callbackChanges = 10
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrUnknownSecret means that the tenant has no such secret of callbacks.
	ErrUnknownSecret = errors.New("queue: no such secret of callbacks")
	// ErrTooManySecrets means that the tenant has MaxCallbackSecrets.
	ErrTooManySecrets = errors.New("queue: the tenant has the most secrets of callbacks allowed")
)

// Callbacks stores what tenants have of their own for their callbacks, sealed where the store is
// encrypted. It is safe for concurrent use.
type Callbacks struct {
	store *store.Store
	box   *sealed.Box
}

// Callbacks returns the secrets and endpoints of callbacks in the queue's store.
func (q *Queue) Callbacks() *Callbacks { return &Callbacks{q.store, q.box} }

// The fields of a tenant's hash.
const (
	secretField    = "secret:" // and the id
	endpointsField = "endpoints"
)

// storedSecret is a secret as JSON.
type storedSecret struct {
	Kind    CallbackKind `json:"kind"`
	Key     []byte       `json:"key"`
	Created int64        `json:"created"` // Unix milliseconds
	By      string       `json:"by"`
}

// CallbacksOf returns what the tenant has. Errors: ErrUnavailable, also where a process lacks the
// key of what is encrypted (ErrSealed).
func (c *Callbacks) CallbacksOf(ctx context.Context, tenant string) (TenantCallbacks, error) {
	fields, err := c.store.Reads.HGetAll(ctx, c.key(tenant)).Result()
	if err != nil {
		return TenantCallbacks{}, store.Unavailable(err)
	}
	return c.decode(tenant, fields)
}

// CreateCallbackSecret makes a secret. Errors: ErrTooManySecrets, ErrUnavailable; after the latter
// the secret may be stored.
func (c *Callbacks) CreateCallbackSecret(
	ctx context.Context, tenant string, kind CallbackKind, by string,
) (CallbackSecret, error) {
	id, err := store.NewID(c.store.ShardOf(tenant))
	if err != nil {
		return CallbackSecret{}, err
	}
	made := CallbackSecret{
		ID: id, Kind: kind, Key: make(CallbackKey, 32), Created: time.Now().UTC().Truncate(time.Millisecond), By: by,
	}
	_, _ = rand.Read(made.Key) // never fails
	text, err := json.Marshal(storedSecret{kind, made.Key, made.Created.UnixMilli(), by})
	if err != nil {
		return CallbackSecret{}, fmt.Errorf("queue: encode a secret: %w", err)
	}
	_, err = c.change(ctx, tenant, func(before TenantCallbacks, p redis.Pipeliner) error {
		if len(before.Secrets) >= MaxCallbackSecrets {
			return fmt.Errorf("%w: %d", ErrTooManySecrets, MaxCallbackSecrets)
		}
		c.put(ctx, p, tenant, secretField+id, text)
		return nil
	})
	if err != nil {
		return CallbackSecret{}, err
	}
	return made, nil
}

// RevokeCallbackSecret deletes a secret, which signs nothing from then on, and returns it. Errors:
// ErrUnknownSecret, ErrUnavailable.
func (c *Callbacks) RevokeCallbackSecret(ctx context.Context, tenant, id string) (CallbackSecret, error) {
	is := func(s CallbackSecret) bool { return s.ID == id }
	before, err := c.change(ctx, tenant, func(before TenantCallbacks, p redis.Pipeliner) error {
		if !slices.ContainsFunc(before.Secrets, is) {
			return ErrUnknownSecret
		}
		p.HDel(ctx, c.key(tenant), secretField+id)
		return nil
	})
	if errors.Is(err, ErrUnknownSecret) {
		// An earlier call may have deleted it.
		if unsure := c.store.Confirm(ctx, c.key(tenant)); unsure != nil {
			return CallbackSecret{}, unsure
		}
	}
	if err != nil {
		return CallbackSecret{}, err
	}
	return before.Secrets[slices.IndexFunc(before.Secrets, is)], nil
}

// PutCallbackEndpoints replaces the endpoints of a tenant, and returns the former ones. Errors:
// ErrUnavailable.
func (c *Callbacks) PutCallbackEndpoints(ctx context.Context, tenant string, endpoints []string) ([]string, error) {
	text, err := json.Marshal(endpoints)
	if err != nil {
		return nil, fmt.Errorf("queue: encode endpoints: %w", err)
	}
	before, err := c.change(ctx, tenant, func(_ TenantCallbacks, p redis.Pipeliner) error {
		if len(endpoints) == 0 {
			p.HDel(ctx, c.key(tenant), endpointsField)
		} else {
			c.put(ctx, p, tenant, endpointsField, text)
		}
		return nil
	})
	return before.Endpoints, err
}

// erase deletes what a tenant has, and returns how many secrets and endpoints there were.
func (c *Callbacks) erase(ctx context.Context, tenant string) (secrets, endpoints int64, err error) {
	// What is sealed with a key that is gone is deleted, too, so nothing is opened.
	fields, err := c.store.Patient.HKeys(ctx, c.key(tenant)).Result()
	if err != nil || len(fields) == 0 {
		return 0, 0, store.Unavailable(err)
	}
	for _, field := range fields {
		if strings.HasPrefix(field, secretField) {
			secrets++
		} else {
			endpoints++
		}
	}
	return secrets, endpoints, store.Unavailable(c.store.Patient.Del(ctx, c.key(tenant)).Err())
}

func (c *Callbacks) key(tenant string) string {
	return c.store.ShardOf(tenant).Callbacks(store.EncodeName(tenant))
}

func (c *Callbacks) put(ctx context.Context, p redis.Pipeliner, tenant, field string, text []byte) {
	p.HSet(ctx, c.key(tenant), field, c.box.Seal(sealed.OwnCallbacks, store.EncodeName(tenant), field, text))
}

// change sends the commands that decide adds, unless what the tenant has changes meanwhile: then it
// decides again. It returns what the tenant had before.
func (c *Callbacks) change(
	ctx context.Context, tenant string, decide func(before TenantCallbacks, p redis.Pipeliner) error,
) (before TenantCallbacks, err error) {
	key := c.key(tenant)
	once := func(tx *redis.Tx) error {
		fields, err := tx.HGetAll(ctx, key).Result()
		if err != nil {
			return err
		}
		if before, err = c.decode(tenant, fields); err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return decide(before, p) })
		return err
	}
	for range callbackChanges {
		if err = c.store.Fast.Watch(ctx, once, key); !errors.Is(err, redis.TxFailedErr) {
			break
		}
	}
	for _, own := range []error{ErrUnknownSecret, ErrTooManySecrets, store.ErrSchema, ErrSealed} {
		if errors.Is(err, own) {
			return before, err
		}
	}
	if err != nil {
		return before, store.Unavailable(fmt.Errorf("queue: change callbacks: %w", err))
	}
	return before, c.store.Confirm(ctx, key)
}

// decode reads what is stored of a tenant. What cannot be read is an error: callbacks must not be
// signed by fewer secrets than their receivers expect.
func (c *Callbacks) decode(tenant string, fields map[string]string) (of TenantCallbacks, err error) {
	for field, value := range fields {
		text, err := c.box.Open(sealed.OwnCallbacks, store.EncodeName(tenant), field, []byte(value))
		if errors.Is(err, ErrSealed) {
			return TenantCallbacks{}, err
		}
		id, isSecret := strings.CutPrefix(field, secretField)
		var s storedSecret
		switch {
		case err != nil:
		case isSecret:
			if err = json.Unmarshal(text, &s); err == nil && (len(s.Key) != 32 || s.Kind != CallbackHMAC && s.Kind != CallbackEd25519) {
				err = errors.New("it is no secret")
			}
			of.Secrets = append(of.Secrets, CallbackSecret{id, s.Kind, s.Key, time.UnixMilli(s.Created).UTC(), s.By})
		case field == endpointsField:
			err = json.Unmarshal(text, &of.Endpoints)
		}
		if err != nil { // whose text may have a part of the secret
			return TenantCallbacks{}, fmt.Errorf("%w: the field %s of the callbacks of a tenant cannot be read by this version",
				store.ErrSchema, field)
		}
	}
	slices.SortFunc(of.Secrets, func(a, b CallbackSecret) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.ID, a.ID))
	})
	return of, nil
}
