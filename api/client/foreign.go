package client

import (
	"errors"

	"github.com/7509e464/sluice/api/client/wire"
)

// ErrNotSluice means that a successful answer is not one of Sluice: another program listens there.
var ErrNotSluice = errors.New("the answer is not Sluice's")

// ErrHTTPS means that the server speaks TLS, and the address begins with http://.
var ErrHTTPS = errors.New("the server speaks TLS: its address must begin with https://")

// foreign reports whether a decoded answer lacks a field that Sluice always sends. Any JSON object
// would decode.
func foreign(out any) bool {
	switch out := out.(type) {
	case *wire.Job:
		return out.ID == ""
	case *wire.JobDetail:
		return out.ID == ""
	case *wire.Tenant:
		return out.Tenant == ""
	case *wire.Pool:
		return out.Pool == ""
	case *wire.PoolList:
		return out.Items == nil
	case *wire.PoolFlows:
		return out.Items == nil
	case *wire.JobList:
		return out.Items == nil
	case *wire.TenantList:
		return out.Items == nil
	case *wire.History:
		return out.Items == nil
	case *wire.KeyList:
		return out.Items == nil
	case *wire.NewKey:
		return out.ID == ""
	case *wire.OperatorList:
		return out.Items == nil
	case *wire.NewOperator:
		return out.ID == ""
	}
	return false
}
