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
