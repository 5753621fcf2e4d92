package codec

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Every setting of the table is in the policy of the API.
func TestPolicyHasTheSettingsOfTheTable(t *testing.T) {
	seven := int64(7)
	for _, s := range shaper.SettingsOfTenants() {
		var o shaper.Overrides
		switch field := s.Of(&o).(type) {
		case **int64:
			*field = &seven
		case **bool:
			*field = new(true)
		case **shaper.Rate:
			*field = &shaper.Rate{Limit: 7, Period: time.Minute}
		case **[]shaper.PaceJSON:
			*field = &[]shaper.PaceJSON{{Limit: 7, PeriodMS: 1000, Burst: 1}}
		}
		text, err := json.Marshal(policy(o.Over(shaper.DefaultPolicy()), shaper.SettingsOfTenants(), nil))
		if err != nil {
			t.Fatal(err)
		}
		var got shaper.Overrides
		if err := json.Unmarshal(text, &got); err != nil || s.Text(got) != s.Text(o) {
			t.Errorf("%s is %q in %s, %v, want %q", s.Name, s.Text(got), text, err, s.Text(o))
		}
	}
}
