package codec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/operators"
)

// DecodeOperator reads the body of a new operator.
func DecodeOperator(body []byte) (o operators.Account, err error) {
	value, err := oneValue(body)
	if err != nil {
		return o, err
	}
	var rd reader
	named, ranked := false, false
	rd.object("", value, (*wire.OperatorRequest)(nil), func(name, path string, value json.RawMessage) bool {
		switch name {
		case "name":
			named = true
			switch o.Name = rd.text(path, value, 1, wire.MaxOperatorName); {
			case operators.Reserved(o.Name):
				rd.wrongValue(path, value, "must not be admin, local, or begin with oidc:")
			case o.Name != "" && !operators.IsName(o.Name):
				rd.wrongValue(path, value, operators.NameRule)
			}
		case "role":
			ranked = true
			o.Role = rd.role(path, value)
		case "expires_at":
			before := len(rd.Fields)
			if o.Expires = rd.instant(path, value); len(rd.Fields) == before && !o.Expires.After(time.Now()) {
				rd.wrongValue(path, value, "must be in the future")
			}
		case "networks":
			o.Networks = rd.networks(path, value)
		default:
			return false
		}
		return true
	})
	if !named && len(rd.Fields) == 0 {
		rd.wrong("name", nil, "is required")
	}
	if !ranked && len(rd.Fields) == 0 {
		rd.wrong("role", nil, "is required")
	}
	return o, rd.Err()
}

// role reads the role of an operator.
func (rd *reader) role(path string, value json.RawMessage) (role operators.Role) {
	if kindOf(value) != "string" || json.Unmarshal(value, &role) != nil || !slices.Contains(operators.Roles(), role) {
		rd.wrongValue(path, value, "must be viewer, operator or admin")
	}
	return role
}

// networks reads a list of prefixes and addresses.
func (rd *reader) networks(path string, value json.RawMessage) (networks []netip.Prefix) {
	n := rd.array(path, value, func(_ int, path string, value json.RawMessage) {
		var text string
		_ = json.Unmarshal(value, &text) // then it is no prefix
		p, ok := operators.Network(text)
		if !ok {
			rd.wrongValue(path, value, "must be an address or a prefix, such as 10.1.0.0/16")
		}
		if len(networks) < wire.MaxOperatorNetworks {
			networks = append(networks, p)
		}
	})
	if n > wire.MaxOperatorNetworks {
		rd.wrong(path, value, fmt.Sprintf("must have at most %d elements", wire.MaxOperatorNetworks))
	}
	return networks
}

// Operator encodes an operator.
func Operator(a operators.Account) wire.Operator {
	o := wire.Operator{ID: a.ID, Name: a.Name, Role: string(a.Role), Created: UTC(a.Created), By: a.By,
		Expires: UTC(a.Expires), Used: UTC(a.Used)}
	for _, p := range a.Networks {
		o.Networks = append(o.Networks, p.String())
	}
	return o
}
