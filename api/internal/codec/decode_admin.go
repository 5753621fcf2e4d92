package codec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// DecodeFilter reads the body of purge and replay. Each given condition must restrict the choice:
// an empty list of ids, or an instant before all jobs, must not select every job. A body without a
// condition selects nothing: all jobs are selected only by all.
func DecodeFilter(body []byte, states []queue.ListState) (f queue.Filter, err error) {
	selects, all := false, json.RawMessage(nil)
	err = decodeOptional(body, (*wire.Filter)(nil), func(rd *reader, name, path string, value json.RawMessage) bool {
		selects = true
		switch name {
		case "all":
			if all = value; !rd.truth(path, value) && kindOf(value) == "boolean" {
				rd.wrong(path, value, "must be true, or absent")
			}
		case "ids":
			n := rd.array(path, value, func(_ int, path string, value json.RawMessage) {
				var id string
				if kindOf(value) != "string" || json.Unmarshal(value, &id) != nil || !IsID(id) {
					rd.wrongValue(path, value, "must be the id of a job")
				}
				if len(f.IDs) < wire.MaxFilterIDs {
					f.IDs = append(f.IDs, id)
				}
			})
			if n == 0 || n > wire.MaxFilterIDs {
				rd.wrong(path, value, fmt.Sprintf("must have 1 to %d elements", wire.MaxFilterIDs))
			}
		case "state":
			f.State = rd.state(path, value, states)
		case "route":
			f.Route = rd.text(path, value, 1, wire.MaxTypeBytes)
		case "error":
			f.Error = rd.text(path, value, 1, wire.MaxErrorBytes)
		case "created_before":
			f.CreatedBefore = rd.instant(path, value)
		default:
			return false
		}
		return true
	})
	switch {
	case err != nil:
		return f, err
	case !selects && len(body) == 0:
		return f, problem.Invalid("body", "nothing", noSelection)
	case !selects:
		return f, problem.Invalid("body", "object", noSelection)
	case all != nil && (f.State != "" || len(f.IDs) > 0):
		return f, problem.Invalid("all", kindOf(all), "excludes state and ids")
	}
	return f, nil
}

const noSelection = "must select jobs"

// TenantsPurgeOf is a selection of tenants and of their jobs.
type TenantsPurgeOf struct {
	Prefix, Tier, Cursor string
	DryRun               bool
	Filter               queue.Filter
}

// DecodeTenantsPurge reads the body of a purge of many tenants.
func DecodeTenantsPurge(body []byte) (p TenantsPurgeOf, err error) {
	err = decodeOptional(body, (*wire.TenantsPurge)(nil), func(rd *reader, name, path string, value json.RawMessage) bool {
		switch name {
		case "prefix":
			p.Prefix = rd.text(path, value, 1, wire.MaxTenantBytes)
		case "tier":
			p.Tier = rd.text(path, value, 1, 64)
		case "state":
			p.Filter.State = rd.state(path, value, Purgeable)
		case "route":
			p.Filter.Route = rd.text(path, value, 1, wire.MaxTypeBytes)
		case "error":
			p.Filter.Error = rd.text(path, value, 1, wire.MaxErrorBytes)
		case "created_before":
			p.Filter.CreatedBefore = rd.instant(path, value)
		case "dry_run":
			p.DryRun = rd.truth(path, value)
		case "cursor":
			p.Cursor = rd.text(path, value, 1, wire.MaxTypeBytes)
		default:
			return false
		}
		return true
	})
	return p, err
}

// state reads one of the states.
func (rd *reader) state(path string, value json.RawMessage, states []queue.ListState) (s queue.ListState) {
	if kindOf(value) != "string" || json.Unmarshal(value, &s) != nil || !slices.Contains(states, s) {
		rd.wrongValue(path, value, "must be one of "+strings.Join(StateNames(states), ", "))
	}
	return s
}

// instant reads a time of RFC 3339. With an offset, a time of the year 9999 may be of the next in
// UTC, which RFC 3339 cannot express.
func (rd *reader) instant(path string, value json.RawMessage) (t time.Time) {
	if kindOf(value) != "string" || json.Unmarshal(value, &t) != nil || !IsInstant(t) {
		rd.wrongValue(path, value, InstantRule)
	}
	return t
}

// InstantRule is the rule of a field error for a time that IsInstant does not accept.
const InstantRule = "must be a time after 1970 in RFC 3339, in UTC before the year 10000, such as " +
	"2026-01-02T15:04:05Z"

// IsInstant reports whether a client may send the time, and RFC 3339 can express it in UTC.
func IsInstant(t time.Time) bool { return t.Unix() > 0 && !t.After(LastTime) }

// LastTime is the last instant that RFC 3339 can express in UTC.
var LastTime = time.Date(10000, 1, 1, 0, 0, 0, -1, time.UTC)

// IsID reports whether the text has the form of a job id: 1 to 64 of the characters 0-9 and a-z.
func IsID(id string) bool {
	for _, b := range []byte(id) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'z') {
			return false
		}
	}
	return id != "" && len(id) <= 64
}

// DecodeKey reads the optional body of a new key: its name, end and rights. routeRule is empty for
// a configured route. The key ends after maxAge at the latest; 0: it need not end.
func DecodeKey(body []byte, routeRule func(name string) string, maxAge time.Duration) (k queue.Key, err error) {
	latest := time.Time{}
	if maxAge > 0 {
		latest = time.Now().Add(maxAge)
		k.Expires = latest
	}
	var rights queue.Rights
	err = decodeOptional(body, (*wire.KeyRequest)(nil), func(rd *reader, name, path string, value json.RawMessage) bool {
		switch name {
		case "name":
			k.Name = rd.text(path, value, 0, wire.MaxKeyName)
		case "expires_at":
			before := len(rd.Fields)
			k.Expires = rd.instant(path, value)
			switch {
			case len(rd.Fields) > before:
			case !k.Expires.After(time.Now()):
				rd.wrongValue(path, value, "must be in the future")
			case maxAge > 0 && k.Expires.After(latest):
				rd.wrongValue(path, value, "must be at most "+maxAge.String()+" from now: auth.keys.max_age")
			}
		case "scopes":
			rights.Scopes = each(rd, path, value, func(path string, value json.RawMessage) queue.Scope {
				var scope queue.Scope
				if kindOf(value) != "string" || json.Unmarshal(value, &scope) != nil || !slices.Contains(queue.Scopes(), scope) {
					rd.wrongValue(path, value, "must be one of "+scopeNames())
				}
				return scope
			})
		case "routes":
			rights.Routes = each(rd, path, value, func(path string, value json.RawMessage) string {
				route := rd.text(path, value, 1, wire.MaxTypeBytes)
				if rule := routeRule(route); route != "" && rule != "" {
					rd.wrongValue(path, value, rule)
				}
				return route
			})
		case "types":
			rights.Types = each(rd, path, value, func(path string, value json.RawMessage) string {
				return rd.text(path, value, 1, wire.MaxTypeBytes)
			})
		case "networks":
			rights.Networks = each(rd, path, value, func(path string, value json.RawMessage) netip.Prefix {
				var text string
				_ = json.Unmarshal(value, &text)
				p, ok := networkOf(text)
				if !ok {
					rd.wrongValue(path, value, "must be an address or a prefix, such as 192.0.2.0/24")
				}
				return p
			})
		default:
			return false
		}
		return true
	})
	if rights.Scopes != nil || rights.Narrow() || rights.Networks != nil {
		k.Rights = &rights
	}
	return k, err
}

// DecodeRevocation reads the optional body of a revocation of tokens, whose instant is now unless
// the body says another one.
func DecodeRevocation(body []byte) (v wire.Revocation, err error) {
	now := time.Now()
	v.NotBefore = now
	return v, decodeOptional(body, (*wire.Revocation)(nil), func(rd *reader, name, path string, value json.RawMessage) bool {
		switch name {
		case "subject":
			v.Subject = rd.text(path, value, 1, wire.MaxTenantBytes)
		case "not_before":
			before := len(rd.Fields)
			if v.NotBefore = rd.instant(path, value); len(rd.Fields) == before && v.NotBefore.After(now) {
				rd.wrongValue(path, value, "must not be in the future")
			}
		default:
			return false
		}
		return true
	})
}

// mostOfKey is how many elements a list of the rights of a key may have.
const mostOfKey = 100

// each reads a list of 1 to mostOfKey different elements. It leaves out repeated ones.
func each[T comparable](rd *reader, path string, value json.RawMessage, one func(path string, value json.RawMessage) T) []T {
	list := []T{}
	n := rd.array(path, value, func(i int, path string, value json.RawMessage) {
		if i >= mostOfKey {
			return
		}
		if v := one(path, value); !slices.Contains(list, v) {
			list = append(list, v)
		}
	})
	if n == 0 || n > mostOfKey {
		rd.wrong(path, value, fmt.Sprintf("must have 1 to %d elements", mostOfKey))
	}
	return list
}

func scopeNames() string {
	names := make([]string, len(queue.Scopes()))
	for i, s := range queue.Scopes() {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// networkOf reads an address, or a prefix of addresses.
func networkOf(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err == nil && !p.Addr().Is4In6()
}

// StateNames returns the names of the states as a filter gives them.
func StateNames(states []queue.ListState) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}

// The states that a filter of a purge or of a replay may name.
var (
	Purgeable  = []queue.ListState{queue.ListQueued, queue.ListScheduled, queue.ListRetrying, queue.ListDead}
	Replayable = []queue.ListState{queue.ListDead}
)

// DecodeSwitch reads the optional body of pause and resume. routeRule is empty for a configured
// route.
func DecodeSwitch(body []byte, routeRule func(name string) string) (s wire.Switch, err error) {
	return s, decodeOptional(body, (*wire.Switch)(nil), func(rd *reader, name, path string, value json.RawMessage) bool {
		switch name {
		case "reason":
			s.Reason = rd.text(path, value, 0, shaper.MaxReason)
		case "route":
			if s.Route = rd.text(path, value, 1, wire.MaxTypeBytes); s.Route == "" {
				break
			}
			if rule := routeRule(s.Route); rule != "" {
				rd.wrongValue(path, value, rule)
			}
		default:
			return false
		}
		return true
	})
}

// DecodeReason reads the optional body of drain and unhold, and of the pause and resume of a pool.
func DecodeReason(body []byte) (reason string, err error) {
	return reason, decodeOptional(body, (*wire.Reason)(nil), func(rd *reader, name, path string, value json.RawMessage) bool {
		if name != "reason" {
			return false
		}
		reason = rd.text(path, value, 0, shaper.MaxReason)
		return true
	})
}

// DecodeUnhold reads the optional body of the unhold of a pool.
func DecodeUnhold(body []byte) (u wire.Unhold, err error) {
	return u, decodeOptional(body, (*wire.Unhold)(nil), func(rd *reader, name, path string, value json.RawMessage) bool {
		switch name {
		case "reason":
			u.Reason = rd.text(path, value, 0, shaper.MaxReason)
		case "charge":
			u.Charge = rd.truth(path, value)
		default:
			return false
		}
		return true
	})
}

// DecodeEmpty reads a body that may be absent and has no members.
func DecodeEmpty(body []byte) error {
	return decodeOptional(body, (*wire.Empty)(nil), func(*reader, string, string, json.RawMessage) bool { return false })
}

func decodeOptional(
	body []byte, like any, member func(rd *reader, name, path string, value json.RawMessage) bool,
) error {
	if len(body) == 0 {
		return nil
	}
	value, err := oneValue(body)
	if err != nil {
		return err
	}
	var rd reader
	rd.object("", value, like, func(name, path string, value json.RawMessage) bool {
		return member(&rd, name, path, value)
	})
	return rd.Err()
}
