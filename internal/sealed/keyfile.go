package sealed

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// keyBytes is the length of every key: AES-256.
const keyBytes = 32

// Bounds of a key file.
const (
	maxFile = 64 << 10
	maxKeys = 100
)

// key is a key-encryption key: it wraps data keys.
type key struct {
	id   string // names it in the store without saying anything about it
	aead cipher.AEAD
}

// keyring is the keys of a source. The first wraps, all unwrap.
type keyring []key

// NewKey makes a key as a line of a key file has it.
func NewKey() string {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails
	return base64.StdEncoding.EncodeToString(raw)
}

// CheckFile returns why a file cannot serve as a key file, and a warning about its mode.
func CheckFile(path string) (warning string, err error) {
	_, warning, err = readFile(path)
	return warning, err
}

// readFile reads a key file. Errors name a line, never a key.
func readFile(path string) (keys keyring, warning string, err error) {
	var cause *fs.PathError
	info, err := os.Stat(path)
	switch {
	case errors.As(err, &cause):
		return nil, "", fmt.Errorf("must name a file that can be read: %w", cause.Err)
	case err != nil:
		return nil, "", err
	case !info.Mode().IsRegular():
		return nil, "", errors.New("must name a regular file")
	case info.Size() > maxFile:
		return nil, "", fmt.Errorf("must name a file of at most %d bytes", maxFile)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		warning = fmt.Sprintf("the key file %s has mode %04o: others than its owner have rights to it; chmod 600", path, mode)
	}
	raw, err := os.ReadFile(path)
	if errors.As(err, &cause) {
		return nil, "", fmt.Errorf("must name a file that can be read: %w", cause.Err)
	} else if err != nil {
		return nil, "", err
	}
	keys, err = parseKeys(raw)
	return keys, warning, err
}

// parseKeys reads the lines of a key file. Empty lines, and those that begin with #, have no key.
func parseKeys(file []byte) (keys keyring, err error) {
	for n, line := range bytes.Split(file, []byte("\n")) {
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		raw, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil || len(raw) != keyBytes {
			return nil, fmt.Errorf("line %d must be the base64 of %d bytes, as sluice codec new-key prints it", n+1, keyBytes)
		}
		k := key{id: keyID(raw), aead: aeadOf(raw)}
		for _, other := range keys {
			if other.id == k.id {
				return nil, fmt.Errorf("line %d repeats a key", n+1)
			}
		}
		if keys = append(keys, k); len(keys) > maxKeys {
			return nil, fmt.Errorf("must have at most %d keys", maxKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("must have a key, as sluice codec new-key prints it")
	}
	return keys, nil
}

// keyID names a key: 64 bits of an HMAC, by which nobody finds the key.
func keyID(raw []byte) string {
	h := hmac.New(sha256.New, raw)
	_, _ = h.Write([]byte("sluice: the name of a key")) // never fails
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// aeadOf returns AES-256-GCM under the key. It makes a random nonce for each message, within the
// module that FIPS 140 knows, and puts it before the ciphertext.
func aeadOf(raw []byte) cipher.AEAD {
	block, err := aes.NewCipher(raw)
	if err != nil {
		panic(err) // the length of a key is checked
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has the block size of GCM
	}
	return aead
}

// find returns the key with the id, or nil.
func (ks keyring) find(id string) *key {
	for i := range ks {
		if ks[i].id == id {
			return &ks[i]
		}
	}
	return nil
}

// AddKey puts a new key before those of a key file, which it makes if there is none: mode 0600, and
// the old file stays whole until the new one replaces it.
func AddKey(path string) error {
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(bytes.TrimSpace(before)) > 0 {
		if _, err := parseKeys(before); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	next, err := os.OpenFile(path+".next", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = next.WriteString(NewKey() + "\n" + string(before))
	if err = errors.Join(err, next.Sync(), next.Close()); err == nil {
		err = os.Rename(path+".next", path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+".next"))
	}
	return nil
}
