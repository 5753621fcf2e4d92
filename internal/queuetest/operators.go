package queuetest

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/store"
)

// account makes an account that is not stored.
func account(name string) operators.Account {
	token := operators.NewToken()
	return operators.Account{
		ID: token.ID(), Name: name, Role: operators.Viewer, Hash: token.Hash(), By: "admin",
		Created: time.Now().UTC().Truncate(time.Millisecond),
	}
}

func (s *suite) operators() operators.Store { return operators.NewStore(store.Of(s.q)) }

func (s *suite) accounts() []operators.Account {
	s.Helper()
	all, err := s.operators().ListOperators(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	return all
}

func operatorsStored(s *suite) {
	one, two := account("één {a}"), account("two")
	one.Role, one.Expires = operators.Admin, one.Created.Add(time.Hour)
	one.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	two.Created = two.Created.Add(time.Second)
	for _, a := range []operators.Account{two, one} {
		if err := s.operators().CreateOperator(s.ctx, a); err != nil {
			s.Fatal(err)
		}
	}
	two.Used = two.Created.Add(time.Minute)
	if err := s.operators().UseOperator(s.ctx, two.ID, two.Used); err != nil {
		s.Fatal(err)
	}
	equal := cmpopts.EquateComparable(netip.Prefix{})
	if diff := cmp.Diff([]operators.Account{one, two}, s.accounts(), equal); diff != "" {
		s.Errorf("the accounts (-want +got):\n%s", diff)
	}
	gone, err := s.operators().RevokeOperator(s.ctx, one.ID)
	if diff := cmp.Diff(one, gone, equal); err != nil || diff != "" {
		s.Errorf("revoked (-want +got), %v:\n%s", err, diff)
	}
	if _, err := s.operators().RevokeOperator(s.ctx, one.ID); !errors.Is(err, operators.ErrUnknown) {
		s.Errorf("revoked again: %v", err)
	}
	if diff := cmp.Diff([]operators.Account{two}, s.accounts(), equal); diff != "" {
		s.Errorf("what is left (-want +got):\n%s", diff)
	}
}

func operatorNames(s *suite) {
	var made atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			switch err := s.operators().CreateOperator(s.ctx, account("olaf")); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, operators.ErrExists):
				s.Errorf("create: %v", err)
			}
		})
	}
	all.Wait()
	if n := len(s.accounts()); made.Load() != 1 || n != 1 {
		s.Fatalf("%d were made, %d are stored", made.Load(), n)
	}
	if _, err := s.operators().RevokeOperator(s.ctx, s.accounts()[0].ID); err != nil {
		s.Fatal(err)
	}
	if err := s.operators().CreateOperator(s.ctx, account("olaf")); err != nil {
		s.Errorf("the name of a revoked operator: %v", err)
	}
}

// operatorBound: those that expired a day ago do not count and are deleted.
func operatorBound(s *suite) {
	old := account("old")
	old.Expires = old.Created.Add(-25 * time.Hour)
	if err := s.operators().CreateOperator(s.ctx, old); err != nil {
		s.Fatal(err)
	}
	first := account("first")
	if err := s.operators().CreateOperator(s.ctx, first); err != nil {
		s.Fatal(err)
	}
	text, err := store.Of(s.q).Fast.HGet(s.ctx, store.OperatorsKey, first.ID).Result()
	if err != nil {
		s.Fatal(err)
	}
	var others []any
	for i := range operators.MaxAccounts - 2 {
		others = append(others, operators.NewToken().ID(), strings.Replace(text, "first", fmt.Sprint("o", i), 1))
	}
	if err := store.Of(s.q).Fast.HSet(s.ctx, store.OperatorsKey, others...).Err(); err != nil {
		s.Fatal(err)
	}
	if err := s.operators().CreateOperator(s.ctx, account("last")); err != nil {
		s.Fatal(err)
	}
	if err := s.operators().CreateOperator(s.ctx, account("surplus")); !errors.Is(err, operators.ErrTooMany) {
		s.Errorf("one too many: %v", err)
	}
	if n := len(s.accounts()); n != operators.MaxAccounts {
		s.Errorf("%d accounts", n)
	}
}
