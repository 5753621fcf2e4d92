package queue

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
)

// Encryption encrypts what clients and upstreams wrote before it is stored. Tenants, routes, times,
// states, costs and sizes stay readable. The zero value encrypts nothing, and cannot open a store
// with encrypted texts.
type Encryption struct {
	// KeyFile has one key on each line, base64 of 32 bytes. The first encrypts, all decrypt. The
	// file is read again every five seconds.
	KeyFile string
	// KeyCommand is the path of a program that prints what a key file has, instead of one. It runs
	// at the start, every five minutes, within 25 s of a rotation or if a key is missing, and for
	// RotateKeys.
	KeyCommand string
	// ReadOnly stores new texts in clear, and reads those that are encrypted.
	ReadOnly bool
	// Without opens an encrypted store without its keys. No job of it is delivered then.
	Without bool
}

func (o Encryption) source() sealed.Source {
	return sealed.Source{File: o.KeyFile, Command: o.KeyCommand}
}

// check returns why open would fail. It writes nothing.
func (o Encryption) check(ctx context.Context, c redis.Cmdable) error {
	if !o.source().IsSet() {
		encrypted, err := sealed.Sealed(ctx, c)
		if encrypted && !o.Without {
			return fmt.Errorf("%w: set codec.key_file or codec.command as its other processes have it", ErrEncrypted)
		}
		return err
	}
	return refused(sealed.Check(ctx, c, o.source()))
}

// open makes the box of a store; nil without encryption.
func (o Encryption) open(ctx context.Context, e *Engine, s *store.Store, all Options) (*sealed.Box, error) {
	if !o.source().IsSet() {
		return nil, e.conn.Advise(o.check(ctx, e.conn.Patient))
	}
	box, err := sealed.New(ctx, s, sealed.Options{Keys: o.source(), Writes: !o.ReadOnly, Log: all.Logger})
	if err != nil {
		return nil, e.conn.Advise(refused(err))
	}
	return box, nil
}

// refused is an error of the start: a key that is missing is no outage.
func refused(err error) error {
	if errors.Is(err, sealed.ErrNoKey) || errors.Is(err, sealed.ErrRefused) {
		return fmt.Errorf("%w: %v", ErrEncrypted, err) //nolint:errorlint // it must not be ErrUnavailable
	}
	return err
}

// Sealer encrypts what is stored of jobs outside the queue: the tasks of callbacks. The zero value
// encrypts nothing.
type Sealer struct{ box *sealed.Box }

// Sealer returns the sealer of the queue's store.
func (q *Queue) Sealer() Sealer { return Sealer{q.box} }

// Sealing reports whether Seal encrypts.
func (s Sealer) Sealing() bool { return s.box.Sealing() }

// sealedURL begins the URL of a sealed task; the base64 of the sealed text follows.
const sealedURL = "sealed:"

// Seal encrypts URL and body of a task of the tenant. Both stay what a task can hold.
func (s Sealer) Seal(tenant, task, url string, body []byte) (string, []byte) {
	if !s.Sealing() {
		return url, body
	}
	tenant = store.EncodeName(tenant)
	url = sealedURL + base64.RawStdEncoding.EncodeToString(s.box.Seal(sealed.TaskURL, tenant, task, []byte(url)))
	return url, s.box.Seal(sealed.Task, tenant, task, body)
}

// Open is the inverse of Seal. What is not sealed is returned as it is. ErrSealed means that the
// key is missing.
func (s Sealer) Open(tenant, task, url string, body []byte) (string, []byte, error) {
	tenant = store.EncodeName(tenant)
	if text, ok := strings.CutPrefix(url, sealedURL); ok {
		raw, err := base64.RawStdEncoding.DecodeString(text)
		if err == nil {
			raw, err = s.box.Open(sealed.TaskURL, tenant, task, raw)
		}
		if err != nil {
			return "", nil, err
		}
		url = string(raw)
	}
	body, err := s.box.Open(sealed.Task, tenant, task, body)
	return url, body, err
}

// RotatedKeys is what RotateKeys did.
type RotatedKeys = sealed.Rotated

// RotateKeys makes a new data key, and wraps all keys of the store by the first one of their
// source. Then nothing in the store needs the others of the source, once no process is lagging.
// Errors: ErrOtherKeys, unless force is set; ErrEncrypted, ErrUnavailable. A repeated call goes on
// where one has failed.
func (q *Queue) RotateKeys(ctx context.Context, force bool) (RotatedKeys, error) {
	if q.box == nil {
		return RotatedKeys{}, errors.New("queue: the queue has no keys")
	}
	r, err := q.box.Rotate(ctx, force)
	return r, refused(err)
}

// LaggingKeys returns the processes that do not seal with the data key of RotateKeys yet.
func (q *Queue) LaggingKeys(ctx context.Context, dataKey string) ([]string, error) {
	return q.box.Lagging(ctx, dataKey)
}

// ErrOtherKeys means that a live process has another first key.
var ErrOtherKeys = sealed.ErrOthers

// before is how long after the first keys of a store idempotency keys are looked up that may be
// from before them: the longest that jobs usually wait, and their keys live after that.
const before = 60 * 24 * time.Hour

// birth notes when the store was made, in µs since 1970. A store that was encrypted from its first
// minute on has no older idempotency keys.
func (q *Queue) birth(born string) {
	at, err := strconv.ParseInt(born, 10, 64)
	q.switched = q.box != nil && (err != nil || q.box.Since().Sub(time.UnixMicro(at)) > time.Minute)
}

// older returns which idempotency keys of the submissions the store has from before it was
// encrypted.
func (q *Queue) older(ctx context.Context, shard store.ShardKeys, batch []Submission) (map[string]bool, error) {
	if !q.switched || time.Since(q.box.Since()) > before {
		return nil, nil
	}
	var keys []string
	for _, s := range batch {
		if s.IdempotencyKey != "" {
			keys = append(keys, s.IdempotencyKey)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	tenant := store.EncodeName(batch[0].Tenant)
	found, err := store.Pipeline(ctx, q.store.Fast, keys, func(p redis.Pipeliner, key string) *redis.IntCmd {
		return p.Exists(ctx, shard.Idem(tenant, store.ShortHash(key)))
	})
	if err != nil {
		return nil, err
	}
	older := map[string]bool{}
	for i, n := range found {
		if n > 0 {
			older[keys[i]] = true
		}
	}
	return older, nil
}

// keyLog bounds the log lines about jobs that cannot be decrypted.
type keyLog struct {
	mu   sync.Mutex
	last time.Time
}

// keyMissing notes a job that cannot be decrypted.
func (b *Broker) keyMissing(l Lease, id string, err error) {
	b.unopened()
	b.missing.mu.Lock()
	defer b.missing.mu.Unlock()
	if time.Since(b.missing.last) < sealedHold {
		return
	}
	b.missing.last = time.Now()
	b.log.Error("a job cannot be decrypted: its flow is held, and its job waits without an attempt spent; "+
		"add the key to codec.key_file, or to what codec.command prints",
		"id", id, "tenant", l.Tenant, "route", l.Route, "error", err)
}

// ErrSealed means that this process lacks the key of an encrypted text. It is ErrUnavailable, too.
var ErrSealed = store.ErrSealed

// sealTexts encrypts what the client wrote in a record that is to be admitted, but for the payload.
// Type and trace parent become one text, which begins in the field of the type and may end in that
// of the trace parent.
func sealTexts(box *sealed.Box, id string, r *scripts.Record) {
	if !box.Sealing() {
		return
	}
	tenant := tenantOf(r.Flow)
	texts := make([]byte, 0, 1+len(r.Type)+len(r.TraceParent))
	texts = append(append(append(texts, byte(len(r.Type))), r.Type...), r.TraceParent...)
	text := string(box.Seal(sealed.Texts, tenant, id, texts))
	r.Type, r.TraceParent = text[:min(len(text), maxField)], text[min(len(text), maxField):]
	r.CallbackURL = box.SealText(sealed.Callback, tenant, id, r.CallbackURL)
}

// maxField is the most bytes of a field of a record's prefix.
const maxField = 255

// openTexts decrypts type and trace parent of a job of the tenant, which is named as in keys.
func openTexts(box *sealed.Box, tenant, id, kind, trace string) (string, string, error) {
	if !sealed.Is(kind) {
		return kind, trace, nil
	}
	texts, err := box.Open(sealed.Texts, tenant, id, []byte(kind+trace))
	if err != nil {
		return "", "", err
	}
	if len(texts) == 0 || len(texts) < 1+int(texts[0]) {
		return "", "", sealed.ErrRefused
	}
	n := 1 + int(texts[0])
	return string(texts[1:n]), string(texts[n:]), nil
}

// openRecord decrypts the texts of a record. With an error they are empty.
func openRecord(box *sealed.Box, id string, r *scripts.Record) (err error) {
	tenant := tenantOf(r.Flow)
	if r.Type, r.TraceParent, err = openTexts(box, tenant, id, r.Type, r.TraceParent); err != nil {
		r.CallbackURL = ""
		return err
	}
	r.CallbackURL, err = box.OpenText(sealed.Callback, tenant, id, r.CallbackURL)
	return err
}

// tenantOf returns the tenant of a flow, both as in keys.
func tenantOf(flow string) string {
	tenant, _, _ := strings.Cut(flow, "/")
	return tenant
}

// A sealed result begins with one of these, neither of which begins JSON. The length of its sealed
// JSON follows in four bytes, then that. If it has an answer, its segments follow.
const (
	sealedResult   = "\xff\x02"
	sealedAnswered = "\xff\x03"
	sealedHead     = len(sealedResult) + 4
)

// answerSegment is how many bytes of an answer are sealed at a time, so that a part of an answer
// can be read by itself.
const answerSegment = 4 << 10

// seal encrypts a result: its JSON, and the answer in segments.
func (r result) seal(box *sealed.Box, tenant, id string, text []byte) []byte {
	begin, place := sealedResult, sealed.Result
	if r.answer != nil {
		begin, place = sealedAnswered, sealed.Answered
	}
	text = box.Seal(place, tenant, id, text)
	segments := (len(r.answer) + answerSegment - 1) / answerSegment
	out := make([]byte, 0, sealedHead+len(text)+len(r.answer)+segments*sealed.Overhead)
	out = append(append(binary.BigEndian.AppendUint32(append(out, begin...), uint32(len(text))), text...), nil...)
	for n := range segments {
		from := n * answerSegment
		part := r.answer[from:min(len(r.answer), from+answerSegment)]
		out = append(out, box.Seal(sealed.Answer, tenant, segmentID(id, n, len(r.answer)), part)...)
	}
	return out
}

// segmentID binds a segment to its place in an answer of size bytes.
func segmentID(id string, n, size int) string {
	return id + " " + strconv.Itoa(n) + " " + strconv.Itoa(size)
}

// cutResult splits a result of size bytes, of which raw are the first. It returns the sealed JSON,
// and what raw has of the stored answer, which begins at the offset at. ok is false where raw ends
// before that, and for a result in clear.
func cutResult(raw []byte, size int) (place sealed.Place, text, answer []byte, at int, answered, ok bool) {
	head := string(raw[:min(len(raw), len(sealedResult))])
	switch {
	case head != sealedResult && head != sealedAnswered:
		return "", nil, nil, 0, false, false
	case len(raw) < sealedHead:
		return "", nil, nil, 0, false, false
	}
	at = sealedHead + int(binary.BigEndian.Uint32(raw[len(sealedResult):]))
	if at > size || at > len(raw) {
		return "", nil, nil, 0, false, false
	}
	place, answered = sealed.Result, head == sealedAnswered
	if answered {
		place = sealed.Answered
	}
	return place, raw[sealedHead:at], raw[at:], at, answered, true
}

// answerSize is the size of an answer whose segments take stored bytes.
func answerSize(stored int) int {
	const whole = answerSegment + sealed.Overhead
	return stored - (stored+whole-1)/whole*sealed.Overhead
}

// openSegments decrypts the whole segments in stored, whose first is the n-th of an answer of size
// bytes.
func openSegments(box *sealed.Box, tenant, id string, stored []byte, n, size int) (out []byte, err error) {
	out = make([]byte, 0, len(stored))
	for len(stored) > 0 {
		length := min(answerSegment, size-n*answerSegment) + sealed.Overhead
		if length <= sealed.Overhead {
			return nil, sealed.ErrRefused
		}
		if len(stored) < length {
			break // the rest was not read
		}
		part, err := box.Open(sealed.Answer, tenant, segmentID(id, n, size), stored[:length])
		if err != nil {
			return nil, err
		}
		out, stored, n = append(out, part...), stored[length:], n+1
	}
	return out, nil
}

// unreadable is the last error of a job whose texts cannot be opened.
func unreadable(err error) *JobError {
	return &JobError{Message: "what its client wrote is encrypted and cannot be read here", Detail: fmt.Sprint(err)}
}
