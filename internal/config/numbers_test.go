package config_test

import (
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/config"
)

// TestNumbersHaveOneReader: a number that YAML would read otherwise than a flag or a variable does
// is refused, as written, in every place. As a text it stays as written.
func TestNumbersHaveOneReader(t *testing.T) {
	for _, odd := range []string{"0100", "0x10", "0o17", "0b11", "1_000", "+5", "00"} {
		for setting, yaml := range map[string]string{
			"api.max_connections":             "api: { max_connections: " + odd + " }\n",
			"tenants.defaults.capacity":       "tenants: { defaults: { capacity: " + odd + " } }\n",
			"routes.default.connections":      "",
			"tenants.defaults.rates[0].burst": "tenants: { defaults: { rates: [ { limit: 5, period: 1s, burst: " + odd + " } ] } }\n",
		} {
			file := route + yaml
			if yaml == "" {
				file = "routes: { default: { url: \"http://127.0.0.1:9000/\", connections: " + odd + " } }\n"
			}
			_, err := config.Load(config.Sources{File: write(t, file)})
			if err == nil || !strings.Contains(err.Error(), odd) {
				t.Errorf("%s: %s: %v", setting, odd, err)
			}
		}
	}
	got := mustLoad(t, config.Sources{File: write(t, route+"admin: { token: 0123456701234567 }\n")})
	if got.Admin.Token != "0123456701234567" {
		t.Errorf("the token is %q", got.Admin.Token)
	}
}
