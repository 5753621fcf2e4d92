package worker

import "time"

// hungCall is how long a call to a node of a cluster that does not answer takes until go-redis gives up, if nothing bounds it: 21 to 24 s
// were measured.
const hungCall = 24 * time.Second
