package wire

import "encoding/json"

// AuditList is one page of the audit.
type AuditList struct {
	Items      []AuditEntry `json:"items" nullable:"false" doc:"The newest first."`
	NextCursor string       `json:"next_cursor,omitempty" doc:"The cursor of the next page; absent on the last page. One request reads a bounded part of the audit, so a page may have few entries, or none, although there are more."`
}

// AuditEntry is one entry of the audit. All fields take part in the hash, but the hash itself; see
// docs/audit.md for the form that is hashed.
type AuditEntry struct {
	At       string          `json:"at" format:"date-time" doc:"By the clock of Redis, with six digits of a second. It never falls along the chain."`
	Actor    string          `json:"actor" doc:"Name of the operator: admin for admin.token, local without a token, file for the configuration file, sluice for the audit itself."`
	Role     string          `json:"role" doc:"Role of the operator; empty if there is none."`
	Address  string          `json:"address" doc:"Address of the client, or others."`
	Action   string          `json:"action" example:"tenant.patch"`
	Subject  string          `json:"subject" doc:"The tenant, pool, operator or job."`
	Before   json.RawMessage `json:"before" doc:"Settings before a change; else null."`
	After    json.RawMessage `json:"after" doc:"Settings after a change; else null."`
	Detail   json.RawMessage `json:"detail" doc:"What else is known; null if nothing is."`
	Outcome  string          `json:"outcome" doc:"ok, or the kind of the refusal, such as forbidden."`
	Hash     string          `json:"hash" doc:"SHA-256 in lower-case hex."`
	Previous string          `json:"previous" doc:"Hash of the entry before this one; empty for the first one of all."`
}
