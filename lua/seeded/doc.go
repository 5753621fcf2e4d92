// Package seeded plants one known bug in a build made for it (tag "seeded"), so that it can be shown that the tests find it: what they
// would not find, they do not test. The environment variable SLUICE_SEEDED_BUG names the bug. In any other build nothing here has an
// effect or a cost.
//
// Bugs of the scripts are edits of their text, made while they are composed; a bug in Go stands beside the line that it breaks, under Is.
package seeded

// Bug is one mistake, and the test that must fail with it.
type Bug struct {
	Name    string // as SLUICE_SEEDED_BUG names it
	What    string
	Package string // whose test finds it
	Test    string // as go test -run takes it
}

// Bugs are all of them.
var Bugs = []Bug{
	{"no-epoch-check", "a stale settle is taken", "./lua", "TestParity/redis/one_flow"},
	{"time-twice", "a script reads TIME a second time", "./lua", "TestParity/redis/one_flow"},
	{"clock-goes-back", "the shard's clock is not kept monotone", "./lua", "TestParity/redis/one_flow"},
	{"admit-twice", "a submission sent twice is admitted twice", "./lua", "TestParity/redis/one_flow"},
	{"bound-off-by-one", "one job more than the capacity is admitted", "./lua", "TestParity/redis/one_flow"},
	{"retry-unscheduled", "a retry does not wait for its backoff", "./lua", "TestParity/redis/one_flow"},
	{"batch-not-counted", "an atomic batch is judged as if it were one job", "./lua", "TestParity/redis/one_flow"},
	{"timestamp-loses-digits", "a timestamp is joined to a text as a number", "./lua", "TestParity/redis/(one_flow|policies_change|dead_letters)"},
	{"write-before-read", "a script writes before it has read what it needs", "./lua", "TestParity/redis/traced"},
	{"limit-charged-again", "a limiter counts a request that is sent again", "./lua", "TestLimit(Parity|SentAgain)"},
	{"limit-off-by-one", "a sliding log lets one more pass than its limit", "./queue", "TestLimitsConformance/embedded/a_thousand_callers_get_the_limit"},
	{"raw-tenant-key", "a tenant's name enters a key as it is", "./queue", "FuzzEncodeName"},
	{"settled-before-2xx", "a delivery is settled before the upstream has answered", "./worker", "TestBadAnswersAreFailedAttempts"},
	{"workers-clock", "a worker goes by its own clock", "./worker", "TestJobsLeaveAtTheirStamps"},
}
