package shaper

import (
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
		{"b", []string{"a"}, "must be one of the tiers: a"},
		{"gold", nil, "must be one of the tiers: there are none"},
		{"gold", many, "must be one of the tiers: " + strings.Join(many[:30], ", ") + " and 10 more"},
	} {
		if got := OneOf("the tiers: ", tt.name, tt.known); got != tt.want {
			t.Errorf("%s of %v: %q, want %q", tt.name, tt.known, got, tt.want)
		}
	}
}
