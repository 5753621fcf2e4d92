package sealed

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// boxed is a box that has keys without a store.
func boxed(ids ...uint32) *Box {
	b := &Box{writes: true, missed: map[uint32]time.Time{}}
	for _, id := range ids {
		raw := newRaw()
		k := &dataKey{id: id, raw: raw, aead: aeadOf(raw), born: time.Now()}
		b.keys.Store(id, k)
		b.current.Store(k)
	}
	b.mac.Store(&macKey{raw: newRaw(), born: time.Now()})
	return b
}

func TestOpensWhatItSealed(t *testing.T) {
	b := boxed(7)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOf(rapid.Byte()).Draw(t, "text")
		tenant, id := rapid.String().Draw(t, "tenant"), rapid.String().Draw(t, "id")
		stored := b.Seal(Payload, tenant, id, text)
		if len(stored) != len(text)+Overhead || !Is(stored) {
			t.Fatalf("%d bytes become %d, want %d more", len(text), len(stored), Overhead)
		}
		if got, err := b.Open(Payload, tenant, id, stored); err != nil || !bytes.Equal(got, text) {
			t.Fatalf("%q, %v, want %q", got, err, text)
		}
		for name, open := range map[string]func() ([]byte, error){
			"of another place":  func() ([]byte, error) { return b.Open(Result, tenant, id, stored) },
			"of another tenant": func() ([]byte, error) { return b.Open(Payload, tenant+"x", id, stored) },
			"of another job":    func() ([]byte, error) { return b.Open(Payload, tenant, id+"x", stored) },
			"with the border between tenant and id elsewhere": func() ([]byte, error) {
				return b.Open(Payload, tenant+"x", strings.TrimPrefix(id, "x"), stored)
			},
		} {
			if got, err := open(); !errors.Is(err, ErrRefused) {
				t.Fatalf("a text %s is opened: %q, %v", name, got, err)
			}
		}
		stored[rapid.IntRange(len(mark)+4, len(stored)-1).Draw(t, "at")] ^= 1
		if got, err := b.Open(Payload, tenant, id, stored); !errors.Is(err, ErrRefused) {
			t.Fatalf("a changed text is opened: %q, %v", got, err)
		}
	})
}

func TestWithoutKeys(t *testing.T) {
	var none *Box
	if got := none.Seal(Payload, "t", "i", []byte("text")); string(got) != "text" || none.Sealing() {
		t.Errorf("no box seals %q", got)
	}
	if got, err := none.Open(Payload, "t", "i", []byte("text")); string(got) != "text" || err != nil {
		t.Errorf("no box opens %q, %v", got, err)
	}
	stored := boxed(9).Seal(Payload, "t", "i", []byte("text"))
	if _, err := none.Open(Payload, "t", "i", stored); !errors.Is(err, ErrNoKey) {
		t.Errorf("no box opens a sealed text: %v", err)
	}
	reader := boxed(9)
	reader.writes = false
	if got := reader.Seal(Payload, "t", "i", []byte("text")); string(got) != "text" {
		t.Errorf("a box that only reads seals %q", got)
	}
}

func TestSumIsKeyed(t *testing.T) {
	var none *Box
	a, b := boxed(1), boxed(1)
	if once, again := a.Sum("p", "x", "y"), a.Sum("p", "x", "y"); once != again {
		t.Error("a digest differs from itself")
	}
	seen := map[string]bool{}
	for _, sum := range []string{
		a.Sum("p", "x", "y"), a.Sum("p", "xy"), a.Sum("q", "x", "y"), a.Sum("px", "y"), b.Sum("p", "x", "y"), none.Sum("p", "x", "y"),
	} {
		if len(sum) != 22 || seen[sum] {
			t.Errorf("digest %q", sum)
		}
		seen[sum] = true
	}
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "codec.key")
	if err := AddKey(path); err != nil {
		t.Fatal(err)
	}
	one, warning, err := readFile(path)
	if err != nil || warning != "" || len(one) != 1 {
		t.Fatalf("%d keys, %q, %v", len(one), warning, err)
	}
	if err := AddKey(path); err != nil {
		t.Fatal(err)
	}
	two, _, err := readFile(path)
	if err != nil || len(two) != 2 || two[1].id != one[0].id {
		t.Fatalf("a new first key: %v, %v", two, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, warning, err := readFile(path); err != nil || !strings.Contains(warning, "0644") {
		t.Errorf("a readable file: %q, %v", warning, err)
	}
	for name, content := range map[string]string{
		"no key": "# nothing\n\n", "short": base64.StdEncoding.EncodeToString(make([]byte, 31)), "no base64": "zzz!",
		"twice": strings.Repeat(NewKey()+"\n", 1) + "x", "repeated": func() string { k := NewKey(); return k + "\n" + k }(),
	} {
		if keys, err := parseKeys([]byte(content)); err == nil {
			t.Errorf("%s: %d keys", name, len(keys))
		} else if strings.Contains(err.Error(), "zzz") {
			t.Errorf("%s: the error has the line: %v", name, err)
		}
	}
	if _, _, err := readFile(filepath.Join(dir, "absent")); err == nil {
		t.Error("an absent file")
	}
}

// TestKeyCommand: a program prints the keys. What it says when it fails is in the error, what it
// prints is not.
func TestKeyCommand(t *testing.T) {
	program := func(content string) Source {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+content+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if warning, err := CheckCommand(path); warning != "" || err != nil {
			t.Errorf("%q, %v", warning, err)
		}
		return Source{Command: path}
	}
	key := NewKey()
	if keys, _, err := program("echo " + key).read(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	for content, want := range map[string]string{
		"echo " + key + "; echo no rights >&2; exit 3": `exit status 3: "no rights"`,
		"echo " + key + "x":                            "line 1 must be the base64",
		"":                                             "must have a key",
		"yes":                                          "must print at most 65536 bytes",
		"head -c 1000000 /dev/zero >&2; exit 1":        "exit status 1",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, _, err := program(content).read(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "codec.command /") {
			t.Errorf("%s: %.500v, want %s", content, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), key) || len(err.Error()) > 1000) {
			t.Errorf("%s: the error has the key, or is long: %.500v", content, err)
		}
	}
	path := program("echo").Command
	for name, mode := range map[string]os.FileMode{"cannot be run": 0o600, "may be changed": 0o722} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if warning, err := CheckCommand(path); (err == nil) == (mode == 0o600) || (warning == "") == (mode == 0o722) {
			t.Errorf("a program that %s: %q, %v", name, warning, err)
		}
	}
}

// TestWhenAProgramRunsAgain: after five minutes; and after 20 s if a key is missing, or if another
// process has another first key.
func TestWhenAProgramRunsAgain(t *testing.T) {
	mine, err := parseKeys([]byte(NewKey()))
	if err != nil {
		t.Fatal(err)
	}
	others, err := parseKeys([]byte(NewKey()))
	if err != nil {
		t.Fatal(err)
	}
	report := func(first string) string { return fmt.Sprintf("%s 00000001 %d", first, time.Now().Unix()) }
	known := map[string]string{macField: mine[0].wrap(macField, newRaw(), time.Now()), processField + "x": report(mine[0].id)}
	missing := map[string]string{fieldOf(1): others[0].wrap(fieldOf(1), newRaw(), time.Now())}
	rotating := map[string]string{processField + "x": report(others[0].id)}
	for _, c := range []struct {
		what   string
		age    time.Duration
		fields map[string]string
		want   bool
	}{
		{"all is known", time.Minute, known, false}, {"all is known", 6 * time.Minute, known, true},
		{"a key is missing", time.Minute, missing, true}, {"a key is missing", time.Second, missing, false},
		{"keys are rotated", time.Minute, rotating, true}, {"keys are rotated", time.Second, rotating, false},
	} {
		b := &Box{from: Source{Command: "/keys"}, ring: mine, ranAt: time.Now().Add(-c.age), process: "me"}
		if got := b.due(c.fields); got != c.want {
			t.Errorf("%s after %v: %v", c.what, c.age, got)
		}
	}
}

// TestFIPSOnly: a build that permits approved uses alone seals and opens. GCM with a nonce of the
// caller, as tink-go has it, does not work there.
func TestFIPSOnly(t *testing.T) {
	if os.Getenv("SLUICE_FIPS_CHILD") != "" {
		b := boxed(3)
		stored := b.Seal(Payload, "t", "i", []byte("text"))
		if got, err := b.Open(Payload, "t", "i", stored); err != nil || string(got) != "text" {
			t.Fatalf("%q, %v", got, err)
		}
		if len(b.Sum("p", "x")) != 22 {
			t.Error("no digest")
		}
		block, err := aes.NewCipher(newRaw())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cipher.NewGCM(block); err == nil {
			t.Error("GCM with nonces of the caller is permitted")
		}
		return
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFIPSOnly$", "-test.count=1")
	c.Env = append(os.Environ(), "SLUICE_FIPS_CHILD=1", "GODEBUG=fips140=only")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func FuzzOpen(f *testing.F) {
	b := boxed(7)
	stored := b.Seal(Payload, "t", "i", []byte("text"))
	f.Add(stored)
	f.Add([]byte(mark))
	f.Add(stored[:Overhead-1])
	f.Fuzz(func(t *testing.T, text []byte) {
		b.missed[0xffffffff] = time.Now()
		if Is(text) && len(text) >= Overhead && !bytes.Equal(text[:len(mark)+4], stored[:len(mark)+4]) {
			return // it would ask the store for the key
		}
		got, err := b.Open(Payload, "t", "i", text)
		switch {
		case !Is(text) && (err != nil || !bytes.Equal(got, text)):
			t.Errorf("a clear text: %q, %v", got, err)
		case Is(text) && err == nil && string(got) != "text":
			t.Errorf("opened a text that was never sealed: %q", got)
		}
	})
}

func FuzzUnwrap(f *testing.F) {
	ring, err := parseKeys([]byte(NewKey()))
	if err != nil {
		f.Fatal(err)
	}
	born := time.Unix(1_700_000_000, 0)
	whole := ring[0].wrap("key:00000007", newRaw(), born)
	f.Add(whole)
	f.Add("")
	f.Add(ring[0].id + " x y")
	f.Fuzz(func(t *testing.T, text string) {
		if _, _, err := ring.unwrap("key:00000007", text); err == nil && !strings.HasPrefix(text, ring[0].id) {
			t.Errorf("unwrapped %q", text)
		}
		if _, _, err := ring.unwrap("key:00000008", text); err == nil {
			t.Errorf("unwrapped %q for another data key", text)
		}
	})
}

// TestOpensMore: keys that lack one which the store needs are noticed; further ones do not matter.
func TestOpensMore(t *testing.T) {
	one, two := NewKey(), NewKey()
	ring := func(lines ...string) keyring {
		ks, err := parseKeys([]byte(strings.Join(lines, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		return ks
	}
	old, other, both := ring(one), ring(two), ring(two, one)
	fields := map[string]string{macField: old[0].wrap(macField, make([]byte, keyBytes), time.Now()), "other": "text"}
	for what, wrong := range map[string]bool{
		"another key": !old.opensMore(other, fields), "a further key": old.opensMore(both, fields), "the first read": keyring(nil).opensMore(other, fields),
	} {
		if wrong {
			t.Errorf("%s: it is not seen which keys the store needs", what)
		}
	}
}
