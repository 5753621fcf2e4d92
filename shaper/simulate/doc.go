// Package simulate replays an arrival trace through the shaper or one of the limiters in virtual
// time, so that a rate and a capacity need not be guessed. It reads no clock and starts no
// goroutine: the same trace and policy give the same run on every machine.
//
// # Words
//
//	arrival     a request: an instant and a cost
//	trace       arrivals in order: read from a file, or generated
//	run         a trace with what became of each arrival, and when it left
//	report      a run in a few figures
//	series      a run in equal steps of time, for a picture
//	trade-off   the capacities and waits that different rates need for the same trace and goal
//
// # What is simulated
//
// Shaper does the arithmetic of shaper.Bucket and shaper.Admit, to the microsecond: a job leaves at
// its stamp. It holds its place until a worker takes it out of the queue, which is a little before
// its stamp, for workers look ahead. Of a departure and an arrival at the same instant the
// departure comes first, but arrivals at the same instant are a bunch: they are judged together, as
// those of a batch are, before any of them leaves.
//
// Deliveries all take the same time, none unless it is given, and succeed at the first attempt;
// nothing is held or scheduled for later. So the run is that of a flow whose upstream keeps up, or
// is held back by the cap of concurrency alone. Retries would take further slots, and a poll for
// expired leases, which workers make besides, may free a place up to half a horizon sooner.
package simulate
