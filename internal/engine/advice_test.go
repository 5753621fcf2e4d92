package engine

import (
	"errors"
	"strings"
	"testing"
)

// TestProductOf: Valkey is not shown as the version of Redis that it is compatible with.
func TestProductOf(t *testing.T) {
	for text, want := range map[string][2]string{
		"redis_version:7.0.15\r\nredis_mode:standalone\r\n":                     {"redis", "7.0.15"},
		"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n": {"valkey", "8.0.1"},
		"": {"redis", ""},
	} {
		if name, version := productOf(infoFields(text)); name != want[0] || version != want[1] {
			t.Errorf("%q is %s %s, want %v", text, name, version, want)
		}
	}
}

// TestSupported: a version without what the scripts need is refused, with both versions.
func TestSupported(t *testing.T) {
	for version, want := range map[string]bool{
		"": false, "unknown": false, "5.0.14": false, "6.0.16": false, "6.2.0": true, "7.2.4": true, "10.0.0": true,
	} {
		err := supported(version)
		if (err == nil) != want || err != nil && (!errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "6.2")) {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// TestUnsafe: a master that loads its append-only file says that it has none.
func TestUnsafe(t *testing.T) {
	for _, tt := range []struct {
		info string
		want int
	}{
		{"maxmemory_policy:noeviction\r\naof_enabled:1\r\nloading:0\r\n", 0},
		{"maxmemory_policy:noeviction\r\naof_enabled:0\r\nloading:0\r\n", 1},
		{"maxmemory_policy:noeviction\r\naof_enabled:0\r\nloading:1\r\n", 0},
		{"maxmemory_policy:allkeys-lru\r\naof_enabled:0\r\nloading:0\r\n", 2},
	} {
		if got := unsafe("it", infoFields(tt.info)); len(got) != tt.want {
			t.Errorf("%q: %q", tt.info, got)
		}
	}
}
