package simulate

import "github.com/7509e464/sluice/shaper/limiter"

// Limiter replays the trace through a limiter with one key: allowed requests leave at once. The
// error is of type shaper.Problems or wraps ErrTrace.
func Limiter(t Trace, p limiter.Policy) (*Run, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := t.validate(); err != nil {
		return nil, err
	}
	r := newRun(string(p.Algorithm), t, p.Rate)
	var s limiter.State
	for i, a := range t {
		if s.Take(p, a.At, a.Cost).Allowed {
			r.Fates[i], r.Gone[i] = Departed, a.At
		}
	}
	return r, nil
}
