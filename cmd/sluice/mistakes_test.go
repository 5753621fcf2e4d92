package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// What a newcomer mistypes is answered with the flag, the value and the rule. A flag that selects
// must not be empty, as by an unset variable: without it the selection would be another.
func TestMistakes(t *testing.T) {
	type says = []string
	for _, tt := range []struct {
		command string
		says
	}{
		{"tenant set acme --rate", says{"sluice: --rate: the value is missing"}},
		{"tenant set acme --rates", says{"sluice: --rates: the value is missing"}},
		{"job list --state", says{"sluice: --state: the value is missing; it is one of all, queued, "}},
		{"init", says{"sluice: the argument <case> is missing; it is one of service, partner, forward, model, asynq"}},
		{"tenant set acme --capacity 10k", says{`sluice: --capacity: "10k": must be a whole number; is 10000 meant?`}},
		{"tenant set acme --capacity -1", says{`sluice: --capacity: "-1": must be a whole number, such as 100`}},
		{"tenant set acme --capacity 1.5", says{`sluice: --capacity: "1.5": must be a whole number, such as 100`}},
		{"tenant set acme --capacity 010", says{`sluice: --capacity: "010": must be a whole number; is 10 meant?`}},
		{"tenant set acme --capacity 0o10", says{`sluice: --capacity: "0o10": must be a whole number`}},
		{"tenant set acme --capacity 0x10", says{`sluice: --capacity: "0x10": must be a whole number`}},
		{"pool set all --burst 1_000", says{`sluice: --burst: "1_000": must be a whole number; is 1000 meant?`}},
		{"pool flows all --limit +5", says{`sluice: --limit: "+5": must be a whole number; is 5 meant?`}},
		{"burst -n 010", says{`"010": must be a whole number; is 10 meant?`}},
		{"submit --type t --cost 010 1", says{`sluice: --cost: "010": must be a whole number; is 10 meant?`}},
		{"simulate --burst 010", says{`sluice: --burst: "010": must be a whole number; is 10 meant?`}},
		{"top --limit 99999999999999999999", says{"sluice: --limit: ", "must be a whole number, such as 100"}},
		{"tenant set acme --rates '10/s burst 010'", says{
			`sluice: --rates: "10/s burst 010": burst 010: must be a whole number; is 10 meant?`,
		}},
		{"tenant set acme --rates '10/s burst +5'", says{"burst +5: must be a whole number; is 5 meant?"}},
		{"tenant set acme --rates '10/s burst 5 burst 7'", says{"burst must not be repeated"}},
		{"tenant set acme --rates '10/s by jobs by cost'", says{"by must not be repeated"}},
		{"tenant set acme --rates '10/s by jobs burst 5 by cost'", says{"by must not be repeated"}},
		{"submit --type t --cost 0 1", says{"sluice: --cost: 0: must be at least 1"}},
		{"burst --cost 0", says{"sluice: --cost: 0: must be at least 1"}},
		{"top --count 0", says{"sluice: --count: 0: must be at least 1"}},
		{"tenant set acme --max-wait 10", says{`sluice: --max-wait: "10": must have a unit, such as 10s`}},
		{"tenant set acme --max-wait soon", says{
			`sluice: --max-wait: "soon": must be a duration, such as 250ms, 10s or 1h30m`,
		}},
		{"key create acme --expires-in 30d", says{
			`sluice: --expires-in: "30d": must be a duration, such as 250ms, 10s or 1h30m; is 720h meant?`,
		}},
		{"job list --created-after yesterday", says{
			`sluice: --created-after: "yesterday": must be a time, such as 2026-01-02T15:04:05Z`,
		}},
		{"job list --limit x", says{`sluice: --limit: "x": must be a whole number, such as 100`}},
		{"job get", says{"sluice: the argument <id> is missing"}},
		{"tenant set acme --rate 5", says{"sluice: --rate: not a rate: want LIMIT/PERIOD, such as 10/s or 5/24h"}},
		{"job list --state done", says{`sluice: --state: "done": must be one of "all","queued"`}},
		{"serv", says{"sluice: unknown command serv; is sluice serve meant?"}},
		{"tennant list", says{"sluice: unknown command tennant; is sluice tenant meant?"}},
		{"tenants list", says{"unknown command tenants; is sluice tenant meant?"}},
		{"tenant lsit", says{"unknown command tenant lsit; is sluice tenant list meant?", "Try: sluice tenant --help"}},
		{"route get mail", says{"unknown command route get; the commands are list, test"}},
		{"tenant acme", says{"unknown command tenant acme; the commands are list, get, set"}},
		{"purge acme", says{"unknown command purge; is sluice tenant purge meant?"}},
		{"cancel ID", says{"is sluice job cancel meant?"}},
		{"list", says{"unknown command list; is sluice job list or sluice tenant list or"}},
		{"begin", says{"unknown command begin; the commands are serve, dev"}},
		{"config chekc", says{"is sluice config check meant?"}},
		{"tenant show acme", says{"unknown command tenant show; is sluice tenant get meant?"}},
		{"start", says{"unknown command start; is sluice serve meant?"}},
		{"status", says{"unknown command status; is sluice top meant?"}},
		{"tenant get --tenant acme", says{"unknown flag --tenant; the name stands alone: sluice tenant get NAME"}},
		{"key delete ID", says{"is sluice key revoke meant?"}},
		{"job list acme", says{"unexpected argument acme; a tenant is named by --tenant"}},
		{"serve a.yaml", says{"unexpected argument a.yaml; is sluice config check a.yaml, or --config a.yaml, meant?"}},
		{"version a.yml", says{"unexpected argument a.yml; is sluice config check a.yml meant?"}},
		{"version now", says{"unexpected argument now"}},
		{"tenant set acme --rate 0.5/s", says{"is 1/2s meant?"}},
		{"tenant set acme --rate 10/min", says{"is 10/m meant?"}},
		{"tenant set acme --capasity 5", says{`unknown flag --capasity, did you mean "--capacity"?`}},
		{"tenant set acme -rate 5/s", says{"unknown flag -rate; is --rate meant?"}},
		{"tenant set acme -rate=5/s", says{"unknown flag -rate; is --rate meant?"}},
		{"job list -tenant acme", says{"unknown flag -tenant; is --tenant meant?"}},
		{"job list --state deadd", says{`sluice: --state: "deadd": must be one of "all","queued"`, `; is "dead" meant?`}},
		{"serve --worker_lease 30s", says{`did you mean "--worker-lease"?`}},
		{"config check --config f.yaml", says{"unknown flag --config; the file stands alone: sluice config check FILE"}},
		{"upgrade check --config f.yaml", says{"unknown flag --config; the file stands alone: sluice upgrade check FILE"}},
		{"submit --typ t 1", says{`sluice: unknown flag --typ, did you mean "--type"?`}},
		{"submit '{}'", says{"Try: sluice submit --help"}},
		{"echo --listen 9000", says{`--listen: "9000": must be HOST:PORT, such as 127.0.0.1:9000`}},
		{"tenant set acme --rate 5/w", says{"not a rate"}},
		{"tenant set acme", says{"at least one setting is required"}},
		{"tenant set acme --rates '5/s burst 0'", says{`sluice: --rates: "5/s burst 0": the burst must be at least 1`}},
		{"tenant set acme --rates '5/s burst -1'", says{"the burst must be at least 1"}},
		{"tenant set acme --reset speed", says{"must be one of the settings of a tenant: rate, burst"}},
		{"tenant set acme --reset capcity", says{"must be one of the settings of a tenant: rate, ", "is capacity meant?"}},
		{"pool set all --reset tier", says{"must be one of the settings of a pool: rate, "}},
		{"tenant set acme --rate 5/s --reset rate", says{"--rate and --reset rate exclude each other"}},
		{"tenant set acme --max-wait 5s --reset max-wait", says{"--max-wait and --reset max-wait exclude each other"}},
		{"tenant set acme --tier gold --reset tier", says{"--tier and --reset tier exclude each other"}},
		{"tenant set acme --max-wait 10us", says{"whole milliseconds"}},
		{"submit --type t 'not json'", says{"must be one JSON value"}},
		{"submit --type t --wait 30s", says{"--wait has no value, so 30s is the payload: is --wait --timeout 30s meant?"}},
		{"submit '{}'", says{"--type"}},
		{"submit --type t --delay 1us '{}'", says{"whole milliseconds"}},
		{"submit --api 'ftp://x' --type t '{}'", says{"--api"}},
		{"submit --file jobs.ndjson --type t", says{"--type and --file exclude each other"}},
		{"submit --file jobs.ndjson --wait", says{"see sluice job wait"}},
		{"submit --type t --key-prefix p 1", says{"require --file"}},
		{"tenant set '' --create --rate 5/s", says{"<name> must not be empty: Name of the tenant."}},
		{"tenant get ''", says{"<name> must not be empty: Name of the tenant."}},
		{"tenant purge '' --all", says{"<name>] must not be empty: Name of the tenant"}},
		{"pool set '' --rate 5/s", says{"<name> must not be empty: Name of the pool."}},
		{"tenant set acme --rate 5/s --tier ''", says{"--tier must not be empty"}},
		{"tenant set acme --rate 5/s --rates ''", says{"--rates must not be empty"}},
		{"tenant set acme --rate 5/s --reset=", says{"--reset must not be empty"}},
		{"job list --state dead --route ''", says{
			"sluice: --route must not be empty: give a value or omit the flag", "Try: sluice job list --help",
		}},
		{"job list --state dead --tenant ''", says{"--tenant must not be empty"}},
		{"job cancel --tenant '' ID", says{"--tenant must not be empty"}},
		{"burst --tenant ''", says{"--tenant must not be empty"}},
		{"submit --type t --tenant '' 1", says{"--tenant must not be empty"}},
		{"submit --type t --key= 1", says{"--key must not be empty"}},
		{"submit --file jobs.ndjson --key-prefix=", says{"--key-prefix must not be empty"}},
		{"tenant list --limit 0", says{"at least 1"}},
		{"burst -n 0", says{"at least 1"}},
	} {
		if out := fails(t, cli.ExitUsage, tt.command, tt.says...); out != "" {
			t.Errorf("%s prints %q", tt.command, out)
		}
	}
}

// Where nothing listens, the next step is printed.
func TestNothingListens(t *testing.T) {
	const refused, nothing = "connection refused", "\nNo server listens at this address. "
	fails(t, cli.ExitFailed, "submit --api http://127.0.0.1:1 --type t 1", refused,
		nothing+"Start one with sluice dev or sluice serve, or give its address with --api (SLUICE_API).")
	fails(t, cli.ExitFailed, "tenant get acme --admin http://127.0.0.1:1", refused, nothing, "--admin (SLUICE_ADMIN)")
}

// fails runs a command that fails, checks the exit code and what it says on standard error, and
// returns its output.
func fails(t *testing.T, code int, line string, says ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if got := Run(t.Context(), arguments(line), cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil); got != code {
		t.Errorf("%s: exit code %d, want %d", line, got, code)
	}
	for _, text := range append(says, "sluice: ") {
		if !strings.Contains(errs.String(), text) {
			t.Errorf("%s says %q, want %q", line, errs.String(), text)
		}
	}
	return out.String()
}
