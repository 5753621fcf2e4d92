package shaper

import (
	"fmt"
	"strings"
	"testing"
)

func TestOneOf(t *testing.T) {
	many := strings.Fields(strings.Repeat("x ", 40))
	for _, tt := range []struct {
		name  string
		known []string
		want  string
	}{
		{"gold", []string{"free", "pro"}, "must be one of the tiers: free, pro"},
		{"fre", []string{"free", "pro"}, "must be one of the tiers: free, pro; is free meant?"},
		{"Pro", []string{"free", "pro"}, "must be one of the tiers: free, pro; is pro meant?"},
		{"rpo", []string{"free", "pro"}, "must be one of the tiers: free, pro; is pro meant?"},
		{"b", []string{"a"}, "must be one of the tiers: a"},
		{"gold", nil, "must be one of the tiers: there are none"},
		{"gold", many, "must be one of the tiers: " + strings.Join(many[:30], ", ") + " and 10 more"},
	} {
		if got := OneOf("the tiers: ", tt.name, tt.known); got != tt.want {
			t.Errorf("%s of %v: %q, want %q", tt.name, tt.known, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"type", "payload", "delay_ms", "max_wait_ms", "max_cost", "callback_url"}
	for name, want := range map[string]string{
		"tpye": "type", "Type": "type", "typ": "type", "payloda": "payload", "paylaod": "payload", "callbackUrl": "callback_url",
		"delay": "delay_ms", "max-wait": "max_wait_ms", "max": "", "delay_ms_": "delay_ms", "type_name": "type",
		"priority": "", "t": "", "": "",
	} {
		if got := NearestKey(name, names); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	var tenants []string
	for i := range 50 {
		tenants = append(tenants, fmt.Sprintf("t%02d", i))
	}
	for name, want := range map[string]string{"t0l": "t01", "tO7": "t07", "t99": "", "t1": "", "t011": ""} {
		if got := Nearest(name, tenants); got != want {
			t.Errorf("%q among many alike: %q, want %q", name, got, want)
		}
	}
	for a, b := range map[string]string{"": "abc", "abc": "bac", "ca": "abc", "tenant": "tennant", "kitten": "sitting"} {
		want := map[string]int{"": 3, "abc": 1, "ca": 3, "tenant": 1, "kitten": 3}[a]
		if got, back := distance(a, b), distance(b, a); got != want || back != want {
			t.Errorf("%q, %q: %d and %d, want %d", a, b, got, back, want)
		}
	}
}
