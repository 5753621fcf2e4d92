package lua_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// whole is a flow as scan.lua writes it, with a blank for each line break and a line break for each
// blank of its policy.
const whole = "acme/echo 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 breaker:502 16:17,18:-19 21:upstream " +
	"7\n=gold\n200:1000000:1,5:60000000:3\n1000\n0\n64\n0\n0\n0\n4\n20:1000000\n+erp ++erp\n5\n1\n4\n20:1000000:77:0 7 20000000 23 24 20 22"

// scanned decodes a page with one flow.
func scanned(flow string) (scripts.Scan, error) {
	flow = strings.Map(func(r rune) rune {
		switch r {
		case ' ':
			return '\n'
		case '\n':
			return ' '
		}
		return r
	}, flow)
	return scripts.ScanCall{}.Decode([]any{
		int64(99), "7", "acme", int64(1), int64(3), `{"capacity":5}`, "", "why", "", flow,
	})
}

// TestScanReadsAFlow: every field of a flow is read from its position in the page.
func TestScanReadsAFlow(t *testing.T) {
	got, err := scanned(whole)
	if err != nil {
		t.Fatal(err)
	}
	pace := func(limit int64, period time.Duration, burst int64) shaper.Pace {
		return shaper.Pace{Rate: shaper.Rate{Limit: limit, Period: period}, Burst: burst}
	}
	want := scripts.Scan{Now: 99, Cursor: "7", Tenants: []scripts.ScannedTenant{{
		Entry: "acme", Revision: 3, API: `{"capacity":5}`, Reason: "why", Flows: []scripts.ScannedFlow{{
			Flow: "acme/echo", Depth: 7, Queued: 8, Running: 9, Admitted: 11, Rejected: 12, Departed: 13, Succeeded: 14, Dead: 15, Oldest: 20,
			FullUntil: 6, Tier: "gold", Bytes: 10, Hindered: scripts.Hindrance{Cause: "upstream", Until: 21}, Letters: 22, Cause: "breaker:502",
			Pool: "+erp", InTurn: true, Weights: 7, Reserves: 20, Owed: 23, Extra: 24,
			Bucket: shaper.Bucket{
				Last: 1, Ready: 2, HeldUntil: 3, Share: 4, Spaced: 5,
				Cells: []shaper.Cell{
					{Pace: pace(200, time.Second, 1), TAT: 16, Rem: 17},
					{Pace: pace(5, time.Minute, 3), TAT: 18, Rem: -19},
				},
			},
		}},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	stored, err := scanned(whole + " 30 31 32 33 34 35 36 37 38")
	wantStored := scripts.Stored{
		Live: 30, Dead: 31, Answers: shaper.Aged{Sum: 32, Before: 33, Since: 34},
		Keys: shaper.Aged{Sum: 35, Before: 36, Since: 37}, Kept: 38,
	}
	if f := stored.Tenants[0].Flows[0]; err != nil || f.Stored != wantStored {
		t.Errorf("stored is %+v, %v", f.Stored, err)
	}
	bare, err := scanned("acme/echo" + strings.Repeat(" 0", 26))
	if err != nil {
		t.Fatalf("a flow that was never touched: %v", err)
	}
	if diff := cmp.Diff(scripts.ScannedFlow{Flow: "acme/echo"}, bare.Tenants[0].Flows[0]); diff != "" {
		t.Errorf("a flow that was never touched (-want +got):\n%s", diff)
	}
}

// TestScanRefuses: a page with too many, too few or malformed fields is ErrReply.
func TestScanRefuses(t *testing.T) {
	for _, bad := range []string{
		"", " ", whole + " 1", whole + " 1 2 3 4 5 6 7", whole + " 1 2 3 4 5 6 7 8", whole + " 1 2 3 4 5 6 7 8 9 10", strings.TrimSuffix(whole, " 22"), strings.Replace(whole, "=", "", 1), strings.Replace(whole, " 7 ", " x ", 1),
		strings.Replace(whole, "16:17", "16", 1), strings.Replace(whole, ":17", ":17:1:1", 1), strings.Replace(whole, "200:", "0:", 1),
		strings.Replace(whole, "200:1000000:1,", "", 1), strings.Replace(whole, "200:1000000:1,", "200::1,", 1), strings.Replace(whole, "\n64", "", 1),
		strings.Replace(whole, "acme/echo", "", 1),
	} {
		if _, err := scanned(bad); !errors.Is(err, scripts.ErrReply) {
			t.Errorf("%q: %v, want ErrReply", bad, err)
		}
	}
	for _, values := range [][]any{
		{int64(1), "0", "acme", int64(2), int64(1), "", "", "", "", whole},
		{int64(1), "0", "acme", int64(-1), int64(1), "", "", "", ""},
	} {
		if _, err := (scripts.ScanCall{}).Decode(values); !errors.Is(err, scripts.ErrReply) {
			t.Errorf("%v: %v, want ErrReply", values, err)
		}
	}
}

// FuzzScan: any text of a flow is read or refused, and what is read can be computed with.
func FuzzScan(f *testing.F) {
	f.Add(whole)
	f.Add("a/b 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0")
	f.Add("a/b 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1:1 x: 1\n=\n1:1:1\n0\n0\n0\n0\n0\n0 0 0")
	f.Fuzz(func(t *testing.T, flow string) {
		scan, err := scanned(flow)
		if err != nil {
			if !errors.Is(err, scripts.ErrReply) {
				t.Errorf("%q: %v", flow, err)
			}
			return
		}
		b := scan.Tenants[0].Flows[0].Bucket
		_ = fmt.Sprint(b.Earliest(), b.Pace(scan.Now))
	})
}

// TestWaitOf: only a job that succeeded at its first delivery has a wait.
func TestWaitOf(t *testing.T) {
	for _, tt := range []struct {
		what  string
		state shaper.State
		epoch byte
		cut   int
		want  time.Duration
		ok    bool
	}{
		{"succeeded", shaper.Succeeded, 1, 0, 2 * time.Second, true},
		{"succeeded at the second delivery", shaper.Succeeded, 2, 0, 0, false},
		{"dead", shaper.Dead, 1, 0, 0, false},
		{"cancelled before it left", shaper.Cancelled, 0, 0, 0, false},
		{"cut", shaper.Succeeded, 1, 1, 0, false},
	} {
		head := make([]byte, scripts.HeadLength)
		head[0], head[1], head[5] = '1', byte(tt.state), tt.epoch
		put := func(at int, n int64) {
			for i := 6; i >= 0; i-- {
				head[at+i] = byte(n)
				n >>= 8
			}
		}
		put(14, 5_000_000)
		put(44, 3_000_000)
		if got, ok := scripts.WaitOf(head[:len(head)-tt.cut]); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v, %v; want %v, %v", tt.what, got, ok, tt.want, tt.ok)
		}
	}
}

// TestParseTurn: the turn of a flow with and without a reserve, and texts that are none.
func TestParseTurn(t *testing.T) {
	tests := []struct {
		text    string
		weight  int64
		reserve shaper.Rate
	}{
		{"++erp 1000 3 4", 4, shaper.Rate{}},
		{"-+erp 0 0 8 20:1000000:17:0:0:1", 8, shaper.Rate{Limit: 20, Period: time.Second}},
		{"", 1, shaper.Rate{}},
		{"++erp 1 2", 1, shaper.Rate{}},
		{"++erp 0 0 2 20:1000000", 2, shaper.Rate{}},
	}
	for _, test := range tests {
		if weight, reserve := scripts.ParseTurn(test.text); weight != test.weight || reserve != test.reserve {
			t.Errorf("ParseTurn(%q) = %d, %v, want %d, %v", test.text, weight, reserve, test.weight, test.reserve)
		}
	}
}
