package sealed

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// The fields of store.CodecKey.
const (
	keyField     = "key:"     // and the id of a data key in hex: the wrapped key
	usedField    = "used:"    // and the id: how many messages processes have reserved
	processField = "process:" // and the id of a process: its first key, its data key, and when
	currentField = "current"  // the id of the data key that processes seal with
	macField     = "mac"      // the wrapped key of digests
)

// The end of a data key. With random nonces, NIST SP 800-38D permits 2³² messages of one key.
const (
	keyLife  = 7 * 24 * time.Hour
	keyMost  = 1 << 31
	reserved = 1 << 24 // messages that a process reserves at a time
)

const (
	refreshEvery = 5 * time.Second
	refreshWait  = 30 * time.Second // for one refresh
	// processLives is how long a process counts as live after its last report.
	processLives = 30 * time.Second
	processAge   = time.Hour
)

// Options are the settings of a Box.
type Options struct {
	Keys   Source
	Writes bool // false: open what is sealed, and seal nothing
	Log    *slog.Logger
}

// Sealed reports whether anything in the store may be sealed.
func Sealed(ctx context.Context, c redis.Cmdable) (bool, error) {
	n, err := c.Exists(ctx, store.CodecKey).Result()
	return n > 0, store.Unavailable(err)
}

// New reads the keys of their source and those of the store, which gets its first ones if there are
// none. Errors: ErrNoKey where the source lacks a key of the store; store.ErrUnavailable.
func New(ctx context.Context, s *store.Store, o Options) (*Box, error) {
	b := &Box{
		store: s, from: o.Keys, writes: o.Writes, log: o.Log, process: uuid.NewString(),
		missed: map[uint32]time.Time{},
	}
	if err := b.Refresh(ctx); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.done.Go(func() { b.keepFresh(running) })
	return b, nil
}

// Check returns why New would fail. It writes nothing.
func Check(ctx context.Context, c redis.Cmdable, keys Source) error {
	ring, _, err := keys.read(ctx)
	if err != nil {
		return err
	}
	fields, err := c.HGetAll(ctx, store.CodecKey).Result()
	if err != nil {
		return store.Unavailable(err)
	}
	for field, text := range fields {
		if field == macField || strings.HasPrefix(field, keyField) {
			if _, _, err := ring.unwrap(field, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close ends the refreshing.
func (b *Box) Close() {
	if b == nil {
		return
	}
	b.stop()
	b.done.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = b.store.Fast.HDel(ctx, store.CodecKey, processField+b.process).Err() // else its report gets old
}

func (b *Box) keepFresh(ctx context.Context) {
	ticker := time.NewTicker(refreshEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			bounded, cancel := context.WithTimeout(ctx, refreshWait)
			if err := b.Refresh(bounded); err != nil && ctx.Err() == nil {
				b.log.Warn("the keys of the store could not be read; those that are known stay in use", "error", err)
			}
			cancel()
		}
	}
}

// Refresh reads the source and the keys of the store again. A process does so every five seconds.
func (b *Box) Refresh(ctx context.Context) error {
	if b.from.Command != "" {
		fields, err := b.store.Patient.HGetAll(ctx, store.CodecKey).Result()
		if err != nil {
			return store.Unavailable(err)
		}
		if b.due(fields) {
			b.run(ctx)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refresh(ctx)
}

// refresh is Refresh with the lock, and without a program.
func (b *Box) refresh(ctx context.Context) error {
	ring, complaint, err := b.read(ctx)
	if err != nil {
		return err
	}
	fields, err := b.store.Patient.HGetAll(ctx, store.CodecKey).Result()
	if err != nil {
		return store.Unavailable(err)
	}
	if b.ring.opensMore(ring, fields) {
		ring, complaint = b.ring, b.from.String()+" lacks a key that the store needs; the former keys stay in use"
	}
	b.put(ring, complaint)
	if err := b.take(fields); err != nil {
		return err
	}
	if err := b.digests(ctx, fields); err != nil {
		return err
	}
	if err := b.keep(ctx, fields); err != nil {
		return err
	}
	if b.writes {
		if err := b.choose(ctx, fields); err != nil {
			return err
		}
	}
	return b.report(ctx, fields)
}

// due reports whether a program for keys is to run again: every five minutes, and soon if it has
// failed, if a key is missing, or if another process has another first key, as while keys are
// rotated.
func (b *Box) due(fields map[string]string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	age := time.Since(b.ranAt)
	if age < commandAgain || age > commandEvery {
		return age > commandEvery
	}
	for field, text := range fields {
		if field == macField || strings.HasPrefix(field, keyField) {
			if _, _, err := b.ring.unwrap(field, text); err != nil {
				return true
			}
		}
	}
	return b.failed != nil || slices.ContainsFunc(b.live(fields), func(p process) bool { return p.first != b.ring[0].id })
}

// run runs the program for keys. It does so without the lock, because those who need a key wait for
// that.
func (b *Box) run(ctx context.Context) {
	ring, _, err := b.from.read(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ranAt, b.printed, b.failed = time.Now(), ring, err
}

// read reads the keys of a file, or returns those that the program has printed. A source that has
// become unreadable leaves the former keys in use.
func (b *Box) read(ctx context.Context) (ring keyring, complaint string, err error) {
	if b.from.Command != "" {
		ring, err = b.printed, b.failed
	} else {
		ring, complaint, err = b.from.read(ctx)
	}
	if err != nil && b.ring != nil {
		return b.ring, err.Error() + "; the former keys stay in use", nil
	}
	return ring, complaint, err
}

// put puts keys of the source into force, and logs a complaint once.
func (b *Box) put(ring keyring, complaint string) {
	if b.ring != nil && b.ring[0].id != ring[0].id {
		b.log.Info("the first key of "+b.from.String()+" has changed", "key", ring[0].id)
	}
	b.ring = ring
	if complaint != b.warned {
		if b.warned = complaint; complaint != "" {
			b.log.Warn(complaint)
		}
	}
}

// opensMore reports whether the keys unwrap a key of the store that others do not.
func (ks keyring) opensMore(others keyring, fields map[string]string) bool {
	for field, text := range fields {
		if field != macField && !strings.HasPrefix(field, keyField) {
			continue
		}
		_, _, mine := ks.unwrap(field, text)
		if _, _, theirs := others.unwrap(field, text); mine == nil && theirs != nil {
			return true
		}
	}
	return false
}

// wrapped encodes a key of the store under a key of the source.
func (k *key) wrap(field string, raw []byte, born time.Time) string {
	return k.id + " " + strconv.FormatInt(born.Unix(), 10) + " " +
		base64.StdEncoding.EncodeToString(k.aead.Seal(nil, nil, raw, wrapBound(field, born)))
}

func wrapBound(field string, born time.Time) []byte {
	return []byte("sluice wrapped key\x00" + field + "\x00" + strconv.FormatInt(born.Unix(), 10))
}

// wrappedBy returns the id of the key that wraps a key of the store.
func wrappedBy(text string) string {
	id, _, _ := strings.Cut(text, " ")
	return id
}

// unwrap decodes a key of the store.
func (ks keyring) unwrap(field, text string) (raw []byte, born time.Time, err error) {
	parts := strings.Split(text, " ")
	if len(parts) != 3 {
		return nil, born, fmt.Errorf("%w: the field %s of %s", ErrRefused, field, store.CodecKey)
	}
	k := ks.find(parts[0])
	if k == nil {
		return nil, born, fmt.Errorf("%w: codec.key_file or codec.command has no key %s, which wraps %s", ErrNoKey, parts[0], field)
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	born = time.Unix(seconds, 0)
	if err == nil {
		if raw, err = base64.StdEncoding.DecodeString(parts[2]); err == nil {
			raw, err = k.aead.Open(nil, nil, raw, wrapBound(field, born))
		}
	}
	if err != nil || len(raw) != keyBytes {
		return nil, born, fmt.Errorf("%w: the field %s of %s", ErrRefused, field, store.CodecKey)
	}
	return raw, born, nil
}

// take unwraps the data keys that are not known yet.
func (b *Box) take(fields map[string]string) (err error) {
	for field, text := range fields {
		id, ok := dataKeyID(field)
		if !ok {
			continue
		}
		if _, known := b.keys.Load(id); known {
			continue
		}
		raw, born, failed := b.ring.unwrap(field, text)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		b.keys.Store(id, &dataKey{id: id, raw: raw, aead: aeadOf(raw), born: born})
	}
	if b.mac.Load() != nil {
		return nil // a process that runs does what it can: what it cannot open says so
	}
	return err
}

func dataKeyID(field string) (uint32, bool) {
	text, ok := strings.CutPrefix(field, keyField)
	n, err := strconv.ParseUint(text, 16, 32)
	return uint32(n), ok && err == nil
}

func fieldOf(id uint32) string { return fmt.Sprintf("%s%08x", keyField, id) }

// digests sees that the store has a key of digests, and takes it.
func (b *Box) digests(ctx context.Context, fields map[string]string) error {
	text := fields[macField]
	if text == "" {
		m := b.mac.Load() // of a store that was emptied meanwhile
		if m == nil {
			m = &macKey{raw: newRaw(), born: time.Now()}
		}
		made := b.ring[0].wrap(macField, m.raw, m.born)
		if err := b.store.Patient.HSetNX(ctx, store.CodecKey, macField, made).Err(); err != nil {
			return store.Unavailable(err)
		}
		var err error
		if text, err = b.store.Patient.HGet(ctx, store.CodecKey, macField).Result(); err != nil {
			return store.Unavailable(err)
		}
		// Once more, so that replicas have it: another process may have made it.
		if err := b.store.Durable.HSet(ctx, store.CodecKey, macField, text).Err(); err != nil {
			return store.Unavailable(err)
		}
	}
	raw, born, err := b.ring.unwrap(macField, text)
	switch {
	case err == nil:
		if m := b.mac.Load(); m == nil || string(m.raw) != string(raw) {
			b.mac.Store(&macKey{raw: raw, born: born})
		}
	case b.mac.Load() == nil:
		return err
	}
	return nil
}

// keep writes the data keys that the store has lost, in a failover or because it was emptied.
func (b *Box) keep(ctx context.Context, fields map[string]string) error {
	lost := []any{}
	b.keys.Range(func(_, value any) bool {
		k := value.(*dataKey)
		if field := fieldOf(k.id); fields[field] == "" {
			lost = append(lost, field, b.ring[0].wrap(field, k.raw, k.born))
		}
		return true
	})
	if len(lost) == 0 {
		return nil
	}
	return store.Unavailable(b.store.Durable.HSet(ctx, store.CodecKey, lost...).Err())
}

// choose takes the data key that all processes seal with, or makes the next one, and reserves
// messages of it.
func (b *Box) choose(ctx context.Context, fields map[string]string) error {
	id, _ := strconv.ParseUint(fields[currentField], 16, 32)
	found, _ := b.keys.Load(uint32(id))
	k, _ := found.(*dataKey)
	used, _ := strconv.ParseInt(fields[fmt.Sprintf("%s%08x", usedField, id)], 10, 64)
	if field := fieldOf(uint32(id)); k == nil && fields[field] != "" {
		b.log.Warn("this process lacks the key that wraps the current data key, so it makes another one, which the others use, too",
			"key", wrappedBy(fields[field]), "data_key", fields[currentField])
	}
	if k == nil || time.Since(k.born) > keyLife || used >= keyMost {
		var err error
		if k, err = b.newDataKey(ctx, b.common(fields)); err != nil {
			return err
		}
	}
	if before := b.current.Load(); before != k || b.left.Load() < reserved/2 {
		field := fmt.Sprintf("%s%08x", usedField, k.id)
		if err := b.store.Patient.HIncrBy(ctx, store.CodecKey, field, reserved).Err(); err != nil {
			return store.Unavailable(err)
		}
		if before != k {
			b.left.Store(0)
		}
		b.left.Add(reserved)
	}
	b.current.Store(k)
	return nil
}

// common returns the key of the source that wraps new data keys: the first, unless another process
// does not have that as its first yet and may lack it.
func (b *Box) common(fields map[string]string) key {
	for _, p := range b.live(fields) {
		if k := b.ring.find(p.first); k != nil {
			return *k
		}
	}
	return b.ring[0]
}

// newDataKey makes a data key for all processes. It is stored before its first use.
func (b *Box) newDataKey(ctx context.Context, by key) (*dataKey, error) {
	k := &dataKey{raw: newRaw(), born: time.Unix(time.Now().Unix(), 0)}
	for taken := true; taken; {
		id := make([]byte, 4)
		_, _ = rand.Read(id) // never fails
		k.id = binary.BigEndian.Uint32(id)
		_, taken = b.keys.Load(k.id)
		taken = taken || k.id == 0
	}
	k.aead = aeadOf(k.raw)
	field := fieldOf(k.id)
	if err := b.store.Durable.HSet(ctx, store.CodecKey, field, by.wrap(field, k.raw, k.born),
		currentField, field[len(keyField):]).Err(); err != nil {
		return nil, store.Unavailable(err)
	}
	b.keys.Store(k.id, k)
	return k, nil
}

func newRaw() []byte {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails
	return raw
}

// report stores which keys this process uses, and removes the reports of processes that are gone.
func (b *Box) report(ctx context.Context, fields map[string]string) error {
	now := time.Now()
	var old []string
	for field, text := range fields {
		if p, ok := processOf(field, text); ok && now.Sub(p.at) > processAge {
			old = append(old, field)
		}
	}
	current := "-"
	if k := b.current.Load(); k != nil {
		current = fmt.Sprintf("%08x", k.id)
	}
	_, err := b.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, store.CodecKey, processField+b.process,
			b.ring[0].id+" "+current+" "+strconv.FormatInt(now.Unix(), 10))
		if len(old) > 0 {
			p.HDel(ctx, store.CodecKey, old...)
		}
		return nil
	})
	return store.Unavailable(err)
}

// process is what a process has reported.
type process struct {
	id, first, current string
	at                 time.Time
}

func processOf(field, text string) (p process, ok bool) {
	id, ok := strings.CutPrefix(field, processField)
	parts := strings.Split(text, " ")
	if !ok || len(parts) != 3 {
		return p, false
	}
	seconds, err := strconv.ParseInt(parts[2], 10, 64)
	return process{id, parts[0], parts[1], time.Unix(seconds, 0)}, err == nil
}

// live returns the other processes that have reported lately, in the order of their ids.
func (b *Box) live(fields map[string]string) (all []process) {
	for field, text := range fields {
		if p, ok := processOf(field, text); ok && p.id != b.process && time.Since(p.at) < processLives {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(x, y process) int { return strings.Compare(x.id, y.id) })
	return all
}

// Rotated is what Rotate did.
type Rotated struct {
	First     string   `json:"key"`       // the id of the first key of the source
	DataKey   string   `json:"data_key"`  // the new one
	Wrapped   int      `json:"wrapped"`   // keys of the store that the first key wraps now
	Processes int      `json:"processes"` // live ones, which all have this first key
	Lagging   []string `json:"lagging"`   // processes that do not seal with the new data key yet
	Removable []string `json:"removable"` // ids of the other keys of the source
}

// ErrOthers means that a live process has another first key.
var ErrOthers = errors.New("a process has another first key")

// Rotate makes a new data key, and wraps all keys of the store by the first key of the source.
// Then nothing in the store needs another key of the source. Errors: ErrOthers, unless force is
// set; ErrNoKey; store.ErrUnavailable. A repeated call continues one that has failed.
func (b *Box) Rotate(ctx context.Context, force bool) (r Rotated, err error) {
	if b.from.Command != "" {
		b.run(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ring, complaint, err := b.read(ctx)
	if err != nil {
		return r, err
	}
	b.put(ring, complaint)
	first := b.ring[0]
	r.First = first.id
	fields, err := b.store.Patient.HGetAll(ctx, store.CodecKey).Result()
	if err != nil {
		return r, store.Unavailable(err)
	}
	var others []string
	for _, p := range b.live(fields) {
		if r.Processes++; p.first != first.id {
			others = append(others, p.id)
		}
	}
	if len(others) > 0 && !force {
		return r, fmt.Errorf("%w than %s: %s", ErrOthers, first.id, strings.Join(others, ", "))
	}
	k, err := b.newDataKey(ctx, first)
	if err != nil {
		return r, err
	}
	r.DataKey = fieldOf(k.id)[len(keyField):]
	for again := true; again; { // another process may make a data key meanwhile
		if fields, err = b.store.Patient.HGetAll(ctx, store.CodecKey).Result(); err != nil {
			return r, store.Unavailable(err)
		}
		again = false
		for field, text := range fields {
			if _, isKey := dataKeyID(field); !isKey && field != macField || wrappedBy(text) == first.id {
				continue
			}
			raw, born, err := b.ring.unwrap(field, text)
			if err != nil {
				return r, err
			}
			if err := b.store.Durable.HSet(ctx, store.CodecKey, field, first.wrap(field, raw, born)).Err(); err != nil {
				return r, store.Unavailable(err)
			}
			again = true
		}
	}
	for field := range fields {
		if _, isKey := dataKeyID(field); isKey || field == macField {
			r.Wrapped++
		}
	}
	for _, old := range b.ring[1:] {
		r.Removable = append(r.Removable, old.id)
	}
	r.Lagging, err = b.lagging(ctx, r.DataKey)
	return r, err
}

// Lagging returns the live processes that do not seal with the data key yet.
func (b *Box) Lagging(ctx context.Context, dataKey string) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lagging(ctx, dataKey)
}

func (b *Box) lagging(ctx context.Context, dataKey string) (ids []string, err error) {
	fields, err := b.store.Patient.HGetAll(ctx, store.CodecKey).Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	for _, p := range b.live(fields) {
		if p.current != dataKey && p.current != "-" {
			ids = append(ids, p.id)
		}
	}
	return ids, nil
}
