package api

import (
	"context"
	"slices"
	"time"

	"github.com/7509e464/sluice/internal/operators"
)

func (f *fakeQueue) CreateOperator(_ context.Context, a operators.Account) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.failure != nil:
		return f.failure
	case slices.ContainsFunc(f.accounts, func(have operators.Account) bool { return have.Name == a.Name }):
		return operators.ErrExists
	case len(f.accounts) >= operators.MaxAccounts:
		return operators.ErrTooMany
	}
	f.accounts = append(f.accounts, a)
	return nil
}

func (f *fakeQueue) RevokeOperator(_ context.Context, id string) (operators.Account, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.accounts, func(a operators.Account) bool { return a.ID == id })
	switch {
	case f.failure != nil:
		return operators.Account{}, f.failure
	case i < 0:
		return operators.Account{}, operators.ErrUnknown
	}
	a := f.accounts[i]
	f.accounts = slices.Delete(f.accounts, i, i+1)
	return a, nil
}

func (f *fakeQueue) ListOperators(context.Context) ([]operators.Account, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.accounts), f.failure
}

func (f *fakeQueue) UseOperator(_ context.Context, id string, at time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.accounts {
		if f.accounts[i].ID == id {
			f.accounts[i].Used = at
		}
	}
	return f.failure
}
