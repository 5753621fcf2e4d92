package scripts

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Lines are policies as lib/policy.lua reads them, by the class of the flows that obey them:
// TIER/ROUTE, as in keys.
type Lines map[string]string

// args are the arguments that write_lines in lib/policy.lua takes.
func (l Lines) args() []any {
	args := make([]any, 0, 2*len(l))
	for _, class := range slices.Sorted(maps.Keys(l)) {
		args = append(args, class, l[class])
	}
	return args
}

// In a line, byJobs marks a pace that counts jobs. mark begins each part behind the paces: the
// weight of the class, in letters from firstOfClass on; the types, each with markType before it;
// and the max cost, in letters from firstOfCost on.
const (
	byJobs, mark, markType    = "j", ";", "."
	firstOfClass, firstOfCost = 'A', 'a'
)

// flagDenied stands in a line in place of the flag of a flow that is draining.
const flagDenied = "2"

// letters writes a number as a mark and its digits as letters; empty for 0.
func letters(n int64, first rune) string {
	if n == 0 {
		return ""
	}
	return mark + strings.Map(func(r rune) rune { return r - '0' + first }, strconv.FormatInt(n, 10))
}

// HashType returns the type of a job as scripts compare it: 80 bits of its SHA-256 in letters, in
// hexadecimal from a to p. A line must have no digits where processes of before look for paces.
func HashType(name string) string {
	sum := sha256.Sum256([]byte(name))
	letters := make([]byte, 0, 20)
	for _, b := range sum[:cap(letters)/2] {
		letters = append(letters, 'a'+b>>4, 'a'+b&15)
	}
	return string(letters)
}

// types writes the types of jobs that are admitted; empty for all.
func types(names []string) (text string) {
	for _, name := range names {
		text += markType + HashType(name)
	}
	if text != "" {
		text = mark + text
	}
	return text
}

// encodeRate writes a rate with a burst of 1, such as 10 or 10:60000000 for 10 a minute.
func encodeRate(r shaper.Rate) string {
	if r.Period == time.Second || r.Limit == 0 {
		return strconv.FormatInt(r.Limit, 10)
	}
	return fmt.Sprintf("%d:%d", r.Limit, r.Period.Microseconds())
}

// EncodePolicy writes a policy as a line, for example "10 1000 0 64 0 0 0"; see lib/policy.lua.
func EncodePolicy(p shaper.Policy) string { return encode(p, 0) }

// encode writes a policy with the weight of the flow's class, 0 for none.
func encode(p shaper.Policy, class int64) string {
	paces := make([]string, 0, 1+len(p.Rates))
	for _, pace := range p.Paces() {
		text := encodeRate(pace.Rate)
		if pace.Burst != 1 {
			text = fmt.Sprintf("%d:%d:%d", pace.Rate.Limit, pace.Rate.Period.Microseconds(), pace.Burst)
		}
		if pace.ByJobs {
			text += byJobs
		}
		paces = append(paces, text)
	}
	wait := p.MaxWait.Milliseconds()
	if p.HoldPool || p.MaxHold > 0 && p.MaxHold != shaper.DefaultMaxHold {
		// Of a pool, which has no max wait. Scripts of older processes ignore it.
		wait = 2 * p.MaxHold.Milliseconds()
		if p.HoldPool {
			wait++
		}
	}
	admits := flag(p.Draining)
	if p.Denied {
		admits = flagDenied
	}
	return fmt.Sprintf("%s %d %d %d %d %s %s", strings.Join(paces, ",")+letters(class, firstOfClass)+types(p.Types)+letters(p.MaxCost, firstOfCost),
		p.Capacity, p.CapacityBytes, p.Concurrency, wait, flag(p.Paused), admits)
}

// EncodePooled writes the policy of a flow that is in a pool, named as in keys.
func EncodePooled(p shaper.Policy, pool string) string {
	return fmt.Sprintf("%s %d %s %s", encode(p, p.ClassWeight), max(1, p.Weight), encodeRate(p.Reserve), pool)
}

// EncodeElsewhere writes the policy of a flow whose pool is in another shard. admit refuses its
// jobs with an error that Misplaced recognizes.
func EncodeElsewhere(p shaper.Policy) string { return EncodePolicy(p) + " elsewhere" }

// Misplaced reports whether a call failed because it would put a job into another shard than the
// policies in force say.
func Misplaced(err error) bool { return err != nil && strings.Contains(err.Error(), "MISPLACED ") }

// parseObeyed reads the policy that a flow keeps: the tier that its tenant claimed, and the paces.
func parseObeyed(text string) (tier string, paces []shaper.Pace, err error) {
	fields := strings.Fields(text)
	if len(fields) > 0 && strings.HasPrefix(fields[0], "=") {
		fields = append([]string{""}, fields...) // of a shard without a revision
	}
	if len(fields) == 12 || len(fields) == 10 {
		fields = fields[:9] // in a pool, or in one of another shard
	}
	if len(fields) != 9 || fields[1][0] != '=' {
		return "", nil, fmt.Errorf("%w: not a policy", ErrReply)
	}
	all, _, _ := strings.Cut(fields[2], mark)
	for pace := range strings.SplitSeq(all, ",") {
		numbers, jobs := strings.CutSuffix(pace, byJobs)
		n := []int64{0, time.Second.Microseconds(), 1}
		given := strings.Count(numbers, ":") + 1
		read, err := numbersIn(numbers, min(given, len(n)))
		if copy(n, read); err != nil || n[0] < 1 {
			return "", nil, fmt.Errorf("%w: not a pace: a limit, a period and a burst are", ErrReply)
		}
		paces = append(paces, shaper.Pace{Rate: shaper.Rate{Limit: n[0], Period: micros(n[1])}, Burst: n[2], ByJobs: jobs})
	}
	return fields[1][1:], paces, nil
}

// numbersIn reads n numbers, separated by colons.
func numbersIn(text string, n int) ([]int64, error) {
	numbers := make([]int64, n)
	for i := range numbers {
		part, rest, more := strings.Cut(text, ":")
		var err error
		if numbers[i], err = strconv.ParseInt(part, 10, 64); err != nil || more != (i < n-1) {
			return nil, fmt.Errorf("%w: not %d numbers", ErrReply, n)
		}
		text = rest
	}
	return numbers, nil
}
