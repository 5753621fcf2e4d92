package queue

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/store"
)

// A record that cannot be read opens nothing. Its error differs from that of a missing record, and
// has none of its contents.
func TestStoredKeysThatCannotBeRead(t *testing.T) {
	good := map[string]string{
		"tenant": "acme", "name": "ci", "hash": strings.Repeat("ab", 32), "created": "1700000000000",
		"expires": "1700000000001",
	}
	k, err := keyOf("id", good)
	created := time.UnixMilli(1700000000000)
	want := Key{ID: "id", Tenant: "acme", Name: "ci", Created: created, Expires: created.Add(time.Millisecond)}
	copy(want.Hash[:], bytes.Repeat([]byte{0xab}, 32))
	if diff := cmp.Diff(want, k); err != nil || diff != "" {
		t.Fatalf("%v, key (-want +got):\n%s", err, diff)
	}
	for name, change := range map[string]map[string]string{
		"no tenant": {"tenant": ""}, "no hash": {"hash": ""}, "a short hash": {"hash": "abab"},
		"no hex":  {"hash": strings.Repeat("xy", 32)},
		"no time": {"created": "yesterday"}, "no end": {"expires": ""},
	} {
		fields := maps.Clone(good)
		maps.Copy(fields, change)
		k, err := keyOf("id", fields)
		if !errors.Is(err, store.ErrSchema) || k != (Key{}) {
			t.Errorf("%s: %+v, %v, want no key and ErrSchema", name, k, err)
		}
		if text := fmt.Sprint(err); strings.Contains(text, "acme") || strings.Contains(text, "abab") {
			t.Errorf("%s: the error reveals what is stored: %s", name, text)
		}
	}
	if _, err := keyOf("id", nil); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("nothing: %v", err)
	}
}
