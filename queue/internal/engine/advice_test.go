package engine

import "testing"

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
