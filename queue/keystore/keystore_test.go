package keystore

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue/internal/store"
)

// A record that cannot be read opens nothing and is told apart from one that is not there; what it
// holds is not told.
func TestStoredKeysThatCannotBeRead(t *testing.T) {
	good := map[string]string{"tenant": "acme", "name": "ci", "hash": strings.Repeat("ab", 32), "created": "1700000000000", "expires": "1700000000001"}
	k, err := keyOf("id", good)
	if err != nil || k.Tenant != "acme" || k.Hash[31] != 0xab || !k.Expires.Equal(k.Created.Add(time.Millisecond)) {
		t.Fatalf("%+v, %v", k, err)
	}
	for name, change := range map[string]map[string]string{
		"no tenant": {"tenant": ""}, "no hash": {"hash": ""}, "a short hash": {"hash": "abab"}, "no hex": {"hash": strings.Repeat("xy", 32)},
		"no time": {"created": "yesterday"}, "no end": {"expires": ""},
	} {
		fields := maps.Clone(good)
		maps.Copy(fields, change)
		k, err := keyOf("id", fields)
		if !errors.Is(err, store.ErrSchema) || k != (Key{}) || strings.Contains(err.Error(), "acme") || strings.Contains(err.Error(), "abab") {
			t.Errorf("%s: %+v, %v", name, k, err)
		}
	}
	if _, err := keyOf("id", nil); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("nothing: %v", err)
	}
}
