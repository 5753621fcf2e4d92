package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/7509e464/sluice/shaper"
)

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args string
		want string // ids, or part of the error
		ok   bool
	}{
		{"-only R1", "R1", true},
		{"-quick -only R3,R1", "R1 R3", true},
		{"-full -only R3-everysec", "R3-everysec", true},
		{"-only R3-everysec", "part of -full", false},
		{"-only R99", `no check "R99"`, false},
		{"-quick -full", "not both", false},
		{"R1", "unexpected argument", false},
		{"-nonsense", "not defined", false},
	} {
		_, chosen, err := parse(strings.Fields(c.args))
		var ids []string
		for _, k := range chosen {
			ids = append(ids, k.id)
		}
		got := strings.Join(ids, " ")
		if (err == nil) != c.ok || c.ok && got != c.want || !c.ok && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v", c.args, got, err)
		}
	}
}

func TestEveryCheckIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range all() {
		if c.id == "" || seen[c.id] || c.what == "" || c.target == "" || c.run == nil {
			t.Errorf("check %q", c.id)
		}
		seen[c.id] = true
	}
	checks := all()
	if checks[len(checks)-1].id != "T1" {
		t.Error("T1 checks the stamps of the others, so it comes last")
	}
}

func TestFindings(t *testing.T) {
	var f findings
	f.info("jobs", 20, "")
	f.atMost("worst", 2.5, 3, "s")
	f.atLeast("rate", 99, 99, "%")
	f.none("lost", nil)
	if f.missed() || f.String() != "jobs 20, worst 2.5 s (≤ 3), rate 99 % (≥ 99), lost 0" {
		t.Errorf("%s", &f)
	}
	f.none("lost", []string{"a", "b", "c", "d"})
	if !f.missed() || !strings.HasSuffix(f.String(), "!! lost 4") || len(f.why) != 3 {
		t.Errorf("%s %v", &f, f.why)
	}
}

func TestVerdicts(t *testing.T) {
	good, bad := &findings{}, &findings{}
	good.atMost("x", 1, 1, "")
	bad.atMost("x", 2, 1, "")
	for _, c := range []struct {
		check check
		f     *findings
		err   error
		want  verdict
	}{
		{check{}, good, nil, met}, {check{}, bad, nil, missed}, {check{peer: true}, bad, nil, peer},
		{check{}, good, errors.New("x"), failed}, {check{peer: true}, good, errors.New("x"), failed},
		{check{}, &findings{}, nil, failed},
	} {
		if r := c.check.result(c.f, c.err, 0); r.Verdict != c.want {
			t.Errorf("%v, want %v", r.Verdict, c.want)
		}
	}
}

func TestOnlyTimedFiguresDependOnTheMachine(t *testing.T) {
	for _, c := range []struct {
		lost   []string
		late   float64
		stalls int
		want   bool
	}{
		{nil, 2, 5, true}, {nil, 2, 0, false}, {nil, 1, 5, false}, {[]string{"k"}, 2, 5, false},
		{[]string{"k"}, 1, 5, false},
	} {
		f := &findings{}
		f.none("lost", c.lost)
		f.atMost("late", c.late, 1, "ms")
		f.timed()
		r := check{}.result(f, nil, 0)
		r.stalls.n = c.stalls
		if r.inconclusive() != c.want {
			t.Errorf("%+v", c)
		}
	}
}

func TestAPanicIsAFailure(t *testing.T) {
	err := guarded(func() error { panic("broken") })
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
}

// TestSinkWritesDown: a delivery is in the ledger with the answer it gets, put down to the process
// that sent it.
func TestSinkWritesDown(t *testing.T) {
	l := newLedger()
	s, err := newSink(l)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.set(func(d delivery, nth int) answer {
		if nth == 1 {
			return answer{status: 503}
		}
		return answer{status: 200}
	})
	for _, want := range []int{503, 200} {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost,
			s.at("worker-3", "default"), strings.NewReader(`{"key":"k"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("webhook-id", "j")
		req.Header.Set("Sluice-Tenant", "a%20b")
		req.Header.Set("Sluice-Attempt", "2")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("status %d, want %d", resp.StatusCode, want)
		}
	}
	got := l.delivered(0)
	if len(got) != 2 || got[0].At > got[1].At {
		t.Fatalf("%+v", got)
	}
	want := delivery{
		At: got[0].At, Job: "j", Tenant: "a b", Process: "worker-3", Route: "default", Attempt: 2,
		Body: `{"key":"k"}`, Status: 503,
	}
	if got[0] != want || got[1].Status != 200 || s.mostInside("a b") != 1 {
		t.Errorf("%+v", got)
	}
}

func TestLinesAreCut(t *testing.T) {
	var got []string
	l := &lines{each: func(line []byte) { got = append(got, string(line)) }}
	for _, part := range []string{"a", "b\nc\n\nd", "\ne"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Error(n, err)
		}
	}
	if strings.Join(got, "|") != "ab|c||d" {
		t.Errorf("%q", got)
	}
}

func TestTableMarksWhatIsMissed(t *testing.T) {
	f := &findings{}
	f.atMost("lost", 1, 0, "")
	f.because("lost: key 7")
	c := check{id: "R1", what: "a kill", target: "lost 0"}
	r := c.result(f, nil, 0)
	r.Why = f.why
	var out bytes.Buffer
	table(&out, []result{r})
	for _, want := range []string{"R1", "MISSED", "a kill", "lost 0", "!! lost 1", "key 7"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %s", want, &out)
		}
	}
}

func TestBookReportsTheWorstFlow(t *testing.T) {
	book := newRateBook()
	r, err := shaper.ParseRate("100/s")
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string][]instant{"good": {0, 10e6}, "bad": {0, 10e6 - 5000}} {
		book.note(name, r, at)
	}
	book.releases["x"] = [2]float64{10, 0}
	var f findings
	book.check(&f)
	if !f.missed() || !strings.Contains(strings.Join(f.why, " "), "bad") {
		t.Errorf("%s %v", &f, f.why)
	}
}

// TestSeededBugsMatchTheCode: every seeded bug still finds the line that it changes.
func TestSeededBugsMatchTheCode(t *testing.T) {
	for _, b := range seeded {
		if _, err := b.plant("../.."); err != nil {
			t.Error(err)
		}
	}
}
