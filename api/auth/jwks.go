package auth

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"golang.org/x/time/rate"
)

const (
	defaultRefresh = 5 * time.Minute
	fetchTimeout   = 5 * time.Second // of one fetch; a request with an unknown key id may wait for it
	// fetchAgain is the least time between two fetches because of unknown key ids, which a flood
	// may contain.
	fetchAgain = 10 * time.Second
	fileAge    = 5 * time.Second // between two checks of a file for changes
	maxSet     = 1 << 20         // bytes of a JWKS
)

// keySet holds the keys of a JWKS, a file or a URL. It accepts only asymmetric keys: a JWKS is made
// to be published, so it must not hold secrets.
type keySet struct {
	storage jwkset.Storage // of a URL, refreshed by itself
	failing *atomic.Bool   // the last fetch of the URL has failed
	file    *keyFile
}

// newKeySet reads the set. A file must be valid; a URL is fetched again until ctx ends, because the
// issuer may start later than this process.
//
// With metadataOf, the URL has the metadata of this issuer, which name the URL of the set.
func newKeySet(
	ctx context.Context, from, metadataOf string, refresh time.Duration, log *slog.Logger,
) (*keySet, error) {
	if !IsURL(from) {
		f := &keyFile{path: from, log: log}
		return &keySet{file: f}, f.read()
	}
	if refresh == 0 {
		refresh = defaultRefresh
	}
	if rule := KeySetRule(from); rule != "" {
		return nil, errors.New(rule)
	}
	direct := http.DefaultTransport.(*http.Transport).Clone()
	direct.Proxy = nil // as for all requests of a process: see docs/deploy.md
	context.AfterFunc(ctx, direct.CloseIdleConnections)
	// Redirects are followed below what picks the keys, so that every hop is checked.
	fetch := &http.Client{Transport: direct, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if rule := KeySetRule(r.URL.String()); rule != "" || len(via) >= maxRedirects {
			return errRedirect
		}
		return nil
	}}
	var failing atomic.Bool
	client := &http.Client{Transport: usable{discovered{fetch, metadataOf}, &failing, log}, Timeout: fetchTimeout}
	fetched, err := jwkset.NewStorageFromHTTP(from, jwkset.HTTPClientStorageOptions{
		Client: client, Ctx: ctx, HTTPTimeout: fetchTimeout, RefreshInterval: refresh,
		NoErrorReturnFirstHTTPReq: true,
		RefreshErrorHandler: func(_ context.Context, err error) {
			log.Warn("the JWKS of the token issuer cannot be fetched; keys fetched before stay in use",
				"error", withoutURL(err))
		},
	})
	if err != nil {
		return nil, withoutURL(err)
	}
	storage, err := jwkset.NewHTTPClient(jwkset.HTTPClientOptions{
		HTTPURLs:         map[string]jwkset.Storage{from: fetched},
		RateLimitWaitMax: fetchTimeout, RefreshUnknownKID: rate.NewLimiter(rate.Every(fetchAgain), 1),
	})
	if err != nil {
		return nil, withoutURL(err)
	}
	return &keySet{storage: storage, failing: &failing}, nil
}

const (
	discoveryPath = "/.well-known/openid-configuration"
	maxRedirects  = 5
)

var errRedirect = errors.New("the redirect must lead to an https:// URL, and not be one of many")

// KeySetRule returns the rule that a URL of a JWKS breaks, empty if none. Whoever can answer in
// place of the issuer can sign tokens for every tenant.
func KeySetRule(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || !IsURL(text) || u.Hostname() == "":
		return "must be an https:// URL"
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return "must be an https:// URL: only a loopback address may have http://"
	}
	return ""
}

// isLoopback reports whether the host is this machine.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host) // 0.0.0.0 leads to this machine, too
	return err == nil && (addr.Unmap().IsLoopback() || addr.IsUnspecified()) || strings.EqualFold(host, "localhost")
}

// discovered fetches the JWKS that the metadata of an issuer name (OpenID Connect Discovery 1.0).
// Without an issuer it fetches what it is asked for.
type discovered struct {
	client *http.Client
	issuer string
}

// RoundTrip implements http.RoundTripper.
func (d discovered) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.get(r.Context(), r.URL.String())
	if err != nil || resp.StatusCode != http.StatusOK || d.issuer == "" {
		return resp, err
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxSet))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	var metadata struct {
		Issuer string `json:"issuer"`
		JWKS   string `json:"jwks_uri"`
	}
	if json.Unmarshal(content, &metadata) != nil || metadata.Issuer != d.issuer {
		return nil, errors.New("the metadata must be JSON and name the configured issuer")
	}
	if rule := KeySetRule(metadata.JWKS); rule != "" {
		return nil, errors.New("jwks_uri of the metadata " + rule)
	}
	return d.get(r.Context(), metadata.JWKS)
}

// get fetches a URL. Its errors have no URL, which may hold a password.
func (d discovered) get(ctx context.Context, from string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, withoutURL(err)
	}
	resp, err := d.client.Do(r)
	if err != nil { // an error of a redirect comes with the answer that asked for it
		return nil, withoutURL(err)
	}
	return resp, nil
}

// withoutURL removes the URL, which may hold a password, from the error of a fetch.
func withoutURL(err error) error {
	var fetch *url.Error
	if errors.As(err, &fetch) {
		return fetch.Err
	}
	return err
}

// IsURL reports whether the JWKS is a URL, not a path.
func IsURL(from string) bool {
	return strings.HasPrefix(from, "http://") || strings.HasPrefix(from, "https://")
}

// find returns the keys of the set, fetched again if none has this id. ErrNoKeys means that no
// fetch has succeeded yet, or that the last one has failed and the key may be a new one.
func (s *keySet) find(ctx context.Context, kid string, named bool) ([]TokenKey, error) {
	if s.file != nil {
		return s.file.keys(), nil
	}
	all, err := s.storage.KeyReadAll(ctx)
	known := func(k jwkset.JWK) bool { return k.Marshal().KID == kid }
	if err == nil && (len(all) == 0 || named && !slices.ContainsFunc(all, known)) {
		_, _ = s.storage.KeyRead(ctx, kid) // fetches again, at most once in fetchAgain
		all, err = s.storage.KeyReadAll(ctx)
	}
	if err != nil || len(all) == 0 || named && s.failing.Load() && !slices.ContainsFunc(all, known) {
		return nil, ErrNoKeys
	}
	return keysOf(all), nil
}

// keysOf returns the keys that verify tokens, each with its own algorithm. Keys for other uses are
// left out.
func keysOf(set []jwkset.JWK) []TokenKey {
	var keys []TokenKey
	for _, k := range set {
		jwk := k.Marshal()
		key := k.Key()
		if private, ok := key.(crypto.Signer); ok {
			key = private.Public()
		}
		algorithm, rule := algorithmOf(key)
		if rule != "" || jwk.USE != "" && jwk.USE != jwkset.UseSig ||
			jwk.ALG != "" && jwk.ALG.String() != algorithm {
			continue
		}
		keys = append(keys, TokenKey{jwk.KID, algorithm, key})
	}
	return keys
}

// keyFile is a JWKS in a file. It reads the file again after a change. If that fails, it keeps the
// former keys.
type keyFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	checked time.Time
	changed time.Time // the file's modification time
	size    int64
	found   []TokenKey
}

func (f *keyFile) keys() []TokenKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.checked) < fileAge {
		return f.found
	}
	f.checked = now
	if info, err := os.Stat(f.path); err == nil && info.ModTime().Equal(f.changed) && info.Size() == f.size {
		return f.found
	}
	if err := f.read(); err != nil {
		f.log.Warn("the JWKS file of the token issuer cannot be read; keys read before stay in use", "error", err)
	}
	return f.found
}

// read replaces the keys by those of the file.
func (f *keyFile) read() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return rootOf(err)
	}
	found, err := ReadKeySet(f.path)
	if err != nil {
		return err
	}
	f.found, f.changed, f.size = found, info.ModTime(), info.Size()
	return nil
}

// ReadKeySet reads the keys of a JWKS file that can verify tokens. Its error is the rule that the
// file breaks; a file without such a key breaks one.
func ReadKeySet(path string) ([]TokenKey, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, rootOf(err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSet+1))
	if err != nil {
		return nil, rootOf(err)
	}
	set, _, err := usableKeys(content)
	if err != nil {
		return nil, err
	}
	return keysIn(set)
}

// rootOf is the cause without the path, which the caller names.
func rootOf(err error) error {
	var cause *os.PathError
	if errors.As(err, &cause) {
		return fmt.Errorf("cannot be read: %w", cause.Err)
	}
	return err
}

// usable passes on of a JWKS only the keys that verify tokens. An answer without any is an error,
// so that the former keys stay: identity providers answer 200 with an error document, too.
type usable struct {
	next    http.RoundTripper
	failing *atomic.Bool
	log     *slog.Logger
}

// RoundTrip implements http.RoundTripper.
func (u usable) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := u.fetch(r)
	u.failing.Store(err != nil || resp.StatusCode != http.StatusOK)
	return resp, err
}

func (u usable) fetch(r *http.Request) (*http.Response, error) {
	resp, err := u.next.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxSet+1))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	keys, left, err := usableKeys(content)
	if err != nil {
		return nil, err
	}
	if left > 0 {
		u.log.Debug("keys of the JWKS are not used: they verify no tokens, or are not understood", "keys", left)
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(keys)), int64(len(keys))
	return resp, nil
}

// usableKeys returns the JWKS with only the keys that can verify tokens, and how many it leaves
// out. RFC 7517, section 5, asks to ignore keys that are not understood. The error is the rule that
// a set breaks; a set without such a key breaks one. It quotes nothing of the set.
func usableKeys(content []byte) (set []byte, left int, err error) {
	if len(content) > maxSet {
		return nil, 0, fmt.Errorf("must be at most %d bytes", maxSet)
	}
	var read struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(content, &read) != nil {
		return nil, 0, errors.New("must be a JWK set (RFC 7517)")
	}
	var out struct {
		Keys []json.RawMessage `json:"keys"`
	}
	for _, key := range read.Keys {
		if one, err := keysIn(fmt.Appendf(nil, `{"keys":[%s]}`, key)); err == nil && len(one) == 1 {
			out.Keys = append(out.Keys, key)
		}
	}
	if len(out.Keys) == 0 {
		return nil, 0, fmt.Errorf("must have a key for one of %s", strings.Join(Algorithms()[1:], ", "))
	}
	set, err = json.Marshal(out)
	return set, len(read.Keys) - len(out.Keys), err
}

// keysIn returns the keys of a JWKS that verify tokens.
func keysIn(set []byte) ([]TokenKey, error) {
	var read jwkset.JWKSMarshal
	if err := json.Unmarshal(set, &read); err != nil {
		return nil, err
	}
	storage, err := read.ToStorage()
	if err != nil {
		return nil, err
	}
	all, err := storage.KeyReadAll(context.Background())
	return keysOf(all), err
}
