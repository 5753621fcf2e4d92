package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/7509e464/sluice/tools/internal/product"
)

// bug is one mistake in a source file, and the test that must fail with it.
type bug struct {
	name, what         string
	pkg, test          string // as go test takes them
	file, right, wrong string // the file has right once; with the bug it has wrong instead
}

const oneFlow = "TestParity/redis/one_flow"

// seeded are the bugs that Q1 plants.
var seeded = []bug{
	{
		"no-epoch-check", "a stale settle is taken", "./lua", oneFlow,
		"lua/settle.lua", "elseif j.state == 'l' and j.epoch == epoch then", "elseif j.state == 'l' then",
	},
	{
		"time-twice", "a script reads TIME a second time", "./lua", oneFlow,
		"lua/lib/clock.lua", "local function clock_save()\n",
		"local function clock_save()\n  local again = redis.call('TIME')\n" +
			"  now = tonumber(again[1]) * 1000000 + tonumber(again[2])\n",
	},
	{
		"clock-goes-back", "the shard's clock is not kept monotone", "./lua", oneFlow,
		"lua/lib/clock.lua", "clock.stepped = t + clock.off < clock.last", "clock.stepped = false",
	},
	{
		"admit-twice", "a submission sent twice is admitted twice", "./lua", oneFlow,
		"lua/lib/decide.lua", "  if before ~= '' then\n", "  if false then\n",
	},
	{
		"bound-off-by-one", "one job more than the capacity is admitted", "./lua", oneFlow,
		"lua/lib/admission.lua", "if f.depth + size > p.capacity then", "if f.depth + size > p.capacity + 1 then",
	},
	{
		"retry-unscheduled", "a retry does not wait for its backoff", "./lua", oneFlow,
		"lua/lib/finish.lua", "j.state, j.at = 'r', now + delay", "j.state, j.at = 'r', now",
	},
	{
		"batch-not-counted", "an atomic batch is decided as if it were one job", "./lua", oneFlow,
		"lua/lib/decide.lua", "size, bytes = f.asked, f.asked_bytes\n", "size, bytes = 1, payload\n",
	},
	{
		"timestamp-loses-digits", "a timestamp is joined to a text as a number", "./lua",
		"TestParity/redis/(one_flow|policies_change|dead_letters)",
		"lua/lib/finish.lua", "string.format('%s %s %.0f %.0f %d %d', known, state, j.created, now, " +
			"j.attempts, j.max)",
		"known .. ' ' .. state .. ' ' .. j.created .. ' ' .. now .. ' ' .. j.attempts .. ' ' .. j.max",
	},
	{
		"write-before-read", "a script writes before it has read what it needs", "./lua", "TestParity/redis/traced",
		"lua/settle.lua", "local flows, touched, jobs, ids, names, whole = {}, {}, {}, {}, {}, {}\n",
		"local flows, touched, jobs, ids, names, whole = {}, {}, {}, {}, {}, {}\n" +
			"if KEYS[6] then\n  redis.call('ZREM', KEYS[4], string.sub(KEYS[6], #PREFIX + 5))\nend\n",
	},
	{
		"limit-charged-again", "a limiter counts a request that is sent again", "./lua",
		"TestLimit(Parity|SentAgain)",
		"lua/lib/limit.lua", "  if again then\n    cost = 0\n", "  if again then\n",
	},
	{
		"limit-off-by-one", "a sliding log lets one more pass than its limit", "./queue",
		"TestLimitsConformance/embedded/a_thousand_callers_get_the_limit",
		"lua/sliding_log.lua", "cost <= limit - count and blocked == 0",
		"cost <= limit - count + 1 and blocked == 0",
	},
	{
		"raw-tenant-key", "a tenant's name enters a key as it is", "./internal/store", "FuzzEncodeName",
		"internal/store/keys.go", "	if plain {\n		return name\n	}\n",
		"	if plain || name != \"\" {\n		return name\n	}\n",
	},
	{
		"one-replica-fewer", "a change waits for one replica fewer", "./internal/engine", "TestWaiting",
		"internal/engine/durable.go", "return []any{\"wait\", w.Replicas,", "return []any{\"wait\", w.Replicas - 1,",
	},
	{
		"settled-before-2xx", "a delivery is settled before the upstream has answered", "./worker",
		"TestBadAnswersAreFailedAttempts",
		"worker/deliver_http.go", "	answer, err := d.upstream.Load().Post(",
		"	if l.ID != \"\" {\n" +
			"		return d.route.Retry.decide(l, &queue.Response{Status: http.StatusOK}, \"\", time.Now()), nil\n" +
			"	}\n	answer, err := d.upstream.Load().Post(",
	},
	{
		"workers-clock", "a worker goes by its own clock", "./worker", "TestJobsLeaveAtTheirStamps",
		"worker/clock.go", "return r.at.add(i.Sub(r.instant))", "return r.at.add(time.Until(i.Time()))",
	},
	{
		"slow-reserves-stay", "a rounded sum decides whether the index of reserves has entries", "./lua",
		"TestSharedFate/redis", "lua/lib/pool.lua",
		"p.reserved = index_size(p.reserve_index, p.reserves > 0) > 0",
		"p.reserved = p.reserves > 0 and index_size(p.reserve_index, true) > 0",
	},
	{
		"new-reserve-before-all", "a new reserve does not enter the clock of the reserves", "./lua",
		"TestSharedFate/redis", "lua/lib/turn.lua",
		"t.tat = due + math.max(behind, ahead or behind)",
		"t.tat = ahead and due + math.max(behind, ahead) or 0",
	},
	{
		"route-keeps-its-pool", "a flow whose route has left a pool stays in its indexes", "./lua",
		"TestParity/redis/routes_move_between_pools", "lua/lib/filing.lua",
		"  if f.left then\n    pool_leave(f)\n  end\n", "  f.left = nil\n",
	},
	{
		"abandoned-in-spite-of-key", "a forwarded request with a key is cancelled when its client leaves", "./api",
		"TestForwardAbandoned", "api/forward_answer.go", `if key != "" || job.State.Done()`, "if job.State.Done()",
	},
}

// bugs are the checks of the tests themselves: each plants a known bug and checks that its test
// fails.
func bugs() []check {
	return []check{{
		id: "Q1", what: "known bugs, planted one after the other", target: "the tests find all of them",
		full: scale{limit: 10 * time.Minute}, fullOnly: true, run: plantBugs,
	}}
}

func plantBugs(ctx context.Context, w *world, f *findings) error {
	found := 0
	for _, b := range seeded {
		w.say("planting %s: %s", b.name, b.what)
		caught, err := b.caught(ctx, w.dir)
		if err != nil {
			return err
		}
		if caught {
			found++
			continue
		}
		f.because("%s: %s passes although %s", b.name, b.test, b.what)
	}
	f.atLeast("found", float64(found), float64(len(seeded)), "bugs")
	return nil
}

// plant returns the text of the file under root with the bug in it.
func (b bug) plant(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, b.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), b.right); n != 1 {
		return "", fmt.Errorf("%s: %s has %q %d times, want once", b.name, b.file, b.right, n)
	}
	return strings.Replace(string(text), b.right, b.wrong, 1), nil
}

// overlay writes what go -overlay needs to build the module at root with the bug, into dir.
func (b bug) overlay(root, dir string) (file string, err error) {
	wrong, err := b.plant(root)
	if err != nil {
		return "", err
	}
	planted := filepath.Join(dir, b.name+filepath.Ext(b.file))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, b.file): planted}})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, b.name+".json")
	return file, errors.Join(os.WriteFile(planted, []byte(wrong), 0o600), os.WriteFile(file, list, 0o600))
}

// caught runs the bug's test in a build that has the bug. A build that fails has caught nothing.
func (b bug) caught(ctx context.Context, dir string) (bool, error) {
	root, err := product.Dir(ctx)
	if err != nil {
		return false, err
	}
	overlay, err := b.overlay(root, dir)
	if err != nil {
		return false, err
	}
	args := []string{"test", "-overlay", overlay, "-count=1", "-run", b.test, b.pkg}
	if b.pkg == "./lua" {
		args = append(args, "-rapid.nofailfile", "-rapid.shrinktime=100ms") // nobody reads the failure
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil && strings.Contains(string(out), "no tests to run"):
		return false, fmt.Errorf("%s: no test %s in %s", b.name, b.test, b.pkg)
	case err == nil:
		return false, nil
	case errors.As(err, &failed) && strings.Contains(string(out), "--- FAIL"):
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	}
	return false, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
}
