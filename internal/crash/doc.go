// Package crash ends a process with the build tag "crashpoints" at a chosen point of a job's way,
// by SIGKILL, as a power cut would. With it tools/battery shows that no such end loses a job. In
// any other build it has no effect and no cost.
//
// A point is one line, crash.At("after-lease"), between two effects. A crash there leaves the first
// without the second. SLUICE_CRASH_AT names the point: after-lease:3 ends the process when it
// passes there the third time.
package crash

// Point is a point in the code at which a crash leaves something half done.
type Point struct {
	Label string // its name in At and SLUICE_CRASH_AT
	Role  string // the kind of process that passes it: api or worker
	What  string // the state there: what is done and what is not
}

// Points lists all points in the order in which a job passes them.
var Points = []Point{
	{"before-admit", "api", "a submission is accepted and not sent to Redis"},
	{"after-admit", "api", "Redis has the job, which the process has not counted"},
	{"before-answer", "api", "Redis has the job, and its client no answer"},
	{"after-lease", "worker", "Redis has leased jobs that are not in the pacer"},
	{"at-departure", "worker", "a job has left the pacer and its delivery has not begun"},
	{"before-settle", "worker", "a delivery has ended and is not settled in Redis"},
	{"after-settle", "worker", "Redis has settled jobs that still hold their slots here"},
	{"at-heartbeat", "worker", "Redis has extended leases whose deadlines here are the old ones"},
	{"before-enqueue", "worker", "a job has departed and is no asynq task"},
	{"after-enqueue", "worker", "a job is an asynq task, and its lease as it was"},
	{"before-hand-over", "worker", "completions are claimed and not handed over"},
	{"after-hand-over", "worker", "a completion is an asynq task and still in the outbox"},
	{"after-handed-over", "worker", "completions are handed over and out of the outbox, which the process " +
		"has not noted"},
}
