//go:build seeded

package seeded

import (
	"fmt"
	"os"
	"strings"
)

var planted = os.Getenv("SLUICE_SEEDED_BUG")

// Is reports whether the bug is planted.
func Is(name string) bool { return name == planted }

// edits are the bugs of the scripts: in which file what is written instead of what.
var edits = map[string]struct{ file, right, wrong string }{
	"no-epoch-check": {"settle.lua", "elseif j.state == 'l' and j.epoch == epoch then", "elseif j.state == 'l' then"},
	"time-twice": {
		"lib/clock.lua", "local function clock_save()\n",
		"local function clock_save()\n  local again = redis.call('TIME')\n  now = tonumber(again[1]) * 1000000 + tonumber(again[2])\n",
	},
	"clock-goes-back":   {"lib/clock.lua", "clock.stepped = t + clock.off < clock.last", "clock.stepped = false"},
	"admit-twice":       {"admit.lua", "  if s.stored ~= '' then\n", "  if false then\n"},
	"bound-off-by-one":  {"lib/flow.lua", "if f.depth + size > p.capacity then", "if f.depth + size > p.capacity + 1 then"},
	"retry-unscheduled": {"settle.lua", "j.state, j.at = 'r', now + delay", "j.state, j.at = 'r', now"},
	"batch-not-counted": {"admit.lua", "local size, bytes = atomic and f.asked or 1,", "local size, bytes = 1,"},
	"timestamp-loses-digits": {
		"lib/finish.lua", "string.format('%s %s %.0f %.0f %d %d', known, state, j.created, now, j.attempts, j.max)",
		"known .. ' ' .. state .. ' ' .. j.created .. ' ' .. now .. ' ' .. j.attempts .. ' ' .. j.max",
	},
	"limit-charged-again": {"lib/limit.lua", "  if again then\n    cost = 0\n", "  if again then\n"},
	"limit-off-by-one":    {"sliding_log.lua", "cost <= limit - count and blocked == 0", "cost <= limit - count + 1 and blocked == 0"},
	"write-before-read": {
		"settle.lua", "local flows, touched, jobs, ids, read, names, whole = {}, {}, {}, {}, {}, {}, {}\n",
		"local flows, touched, jobs, ids, read, names, whole = {}, {}, {}, {}, {}, {}, {}\nif KEYS[6] then\n  redis.call('ZREM', KEYS[4], string.sub(KEYS[6], #PREFIX + 5))\nend\n",
	},
}

// Script is the text of a script's file, with the bug in it.
func Script(file, text string) string {
	edit, found := edits[planted]
	if !found || edit.file != file {
		return text
	}
	if strings.Count(text, edit.right) != 1 {
		panic(fmt.Sprintf("seeded: %s does not have the line that %s breaks", file, planted))
	}
	return strings.Replace(text, edit.right, edit.wrong, 1)
}
