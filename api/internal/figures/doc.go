// Package figures reads what happens in the store and at this process, for those who watch:
//
//	Hub       figures in motion for the dashboard and `sluice top`, read once for all watches
//	Gauges    figures of the store as Prometheus gauges
//	Arrivals  the arrivals of jobs at this process in the last hour, also as they come
//	Predictor what these arrivals would meet with other settings
//
// Package api decides who may watch, and encodes the figures.
//
// # Watches
//
// A Hub reads the store while there are watches. Without watches it reads nothing or, with
// Remember, enough for a history of the last minutes, so that a new page does not begin empty.
//
// A watch takes the latest figures. It skips those for which it was too slow, so a client that
// hangs costs a few pointers. Watches are notified one after the other, spread over the time until
// the next reading, because dashboards that draw at one instant cause a peak of processor time. A
// scan reads all tenants in short scripts with pauses between them. It takes at most about a fifth
// of Redis while it runs and a twentieth over time: with many tenants, scans are rarer.
//
// # Arrivals
//
//	arrival    a submission that the queue has decided on: instant, cost, route, admitted or not
//	history    the arrivals of one flow, a tenant's for one route, in the last hour
//	run        arrivals of a history that came close together: exact at both ends, spread evenly between them
//	width      the greatest length of a run: 1 ms at first, more when a history is full of runs
//	follower   receives every arrival of a tenant, exactly
//
// Recording an arrival takes some tens of nanoseconds and allocates nothing once a history has
// grown. Memory is bounded for any number of tenants and arrivals: at the bound, histories become
// coarser, and the tenants that were silent longest are dropped. A recorded arrival is counted
// exactly, with its cost. A follower that is slower than the arrivals gets the number of those it
// has lost.
//
// Arrivals at other processes are unknown here, and the record ends with the process.
package figures
