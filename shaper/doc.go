// Package shaper is the domain of Sluice: its words, its settings and the pure leaky bucket. It
// imports the standard library only, reads no clock and touches no store: every function is (state,
// policy, instant) → (state, decision). The Lua scripts in package lua do the same arithmetic
// inside Redis, and a parity test holds the two together.
//
// # Words
//
//	tenant            whose traffic it is
//	route             where a job goes: a named upstream, set by the operator
//	flow              one bucket: (tenant, route), with its own queue, bound and drain rate
//	policy            a flow's settings: rate, burst, capacity, concurrency, max wait, paused
//	rate              limit per period; the emission interval is T = period / limit
//	pace              a rate with its burst; a flow obeys all of its paces, the strictest wins
//	departure, stamp  one delivery attempt leaving the bucket; its stamp is the instant it was given
//	TAT               theoretical arrival time of GCRA: the instant from which the next stamp of a pace follows
//	depth             jobs scheduled, queued or retrying: admitted, but neither leased nor done
//	capacity          the depth that no admission may exceed
//	overflow          the refusal when depth + size > capacity, with its retry-after
//	lease, epoch      a worker's expiring right to one job; the epoch counts every lease and fences every settle
//	attempt           a delivery that counts against max_attempts
//	settle            the end of a lease: succeeded, retry, dead, held, released
//	horizon           how far ahead of its stamp a job may be leased
//	slack             how late a poll may be and still keep the grid
//	dead letter       a job out of attempts, kept with its last error until it is replayed, purged or past retention
//
// # The life of a job
//
//	           ┌───────────┐ due   ┌────────┐ stamp  ┌────────┐ 2xx   ┌───────────┐
//	admit ───► │ scheduled ├─────► │ queued ├──────► │ leased ├─────► │ succeeded │
//	      │    └───────────┘       └────────┘        └─┬──┬──┬┘       └───────────┘
//	      └──────────────────────────▲  ▲ ▲            │  │  │ out of attempts, or refused for good
//	                                 │  │ └────────────┘  │  └─────► ┌──────┐
//	                                 │  │  held, released,│          │ dead │
//	                                 │  │  lease expired  │ failed   └──┬───┘
//	                                 │  └──── retrying ◄──┘             │
//	                                 └──────────────────────────────────┘ replay
//
// From every waiting state (scheduled, queued, retrying) a job may also become cancelled, by its
// client, or expired, when its max wait is over. Succeeded, dead, cancelled and expired are done;
// only dead can be left again, by replay.
//
// # Arithmetic
//
// Instants are whole microseconds of the store's clock. T is kept as the fraction period/limit,
// never rounded: a pace carries its TAT and a remainder in units of 1/limit µs, so n departures in
// one busy stretch take n·period/limit ± 1 µs for every legal rate. The scripts compute in IEEE
// doubles, which are exact below 2⁵³: where a product may pass that, it is taken in parts, or a
// microsecond does not matter.
package shaper
