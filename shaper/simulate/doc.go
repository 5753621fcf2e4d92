// Package simulate replays an arrival trace through the shaper or one of the limiters in virtual
// time, to find a rate and a capacity without guessing. It reads no clock and starts no
// goroutine: the same trace and policy give the same run on every machine.
//
// # Words
//
//	arrival     a request: an instant and a cost
//	trace       arrivals in order: read from a file, or generated
//	run         a trace with the fate of each arrival, and when it left
//	report      a run in a few figures
//	series      a run in equal steps of time, for a picture
//	member      a flow of a pool, with a trace or with a backlog that never ends
//	trade-off   the capacities and waits that different rates need for the same trace and goal
//
// # What is simulated
//
// Shaper does the arithmetic of shaper.Bucket and shaper.Admit, to the microsecond: a job leaves at
// its stamp. It counts in the depth until a worker leases it, a little before its stamp. If a
// departure and an arrival have the same instant, the departure comes first. Arrivals at the same
// instant are decided together, as a batch is, before any of them leaves.
//
// Pool does the arithmetic of shaper.Pool for several flows. It ignores the horizon: a worker that
// looks ahead decides on a slot before the jobs that come up to the slot.
//
// Every delivery takes the same time, 0 by default, and succeeds at the first attempt. No job is
// held or scheduled for later. So only the rate and the concurrency limit the flow. Retries would
// take further slots. The polls of workers for expired leases may free capacity up to half a
// horizon sooner.
package simulate
