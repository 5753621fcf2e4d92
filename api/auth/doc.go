// Package auth authenticates requests: it finds the tenant, and the tier that the credential
// claims.
//
// There are three kinds of credential, each behind a mode that is on or off. An API key is looked
// up in the store. A JWT is verified with the keys of its issuer. A guest has no credential and is
// identified by its address. The request decides the kind. An invalid credential is refused and
// never falls through to another kind: a client with a revoked key does not become a guest. In the
// mode none, without this package, a header names the tenant.
//
// A Refusal names the class of the mistake and no more: not which of a key's two halves was wrong,
// and nothing of the credential itself. The store keeps the SHA-256 of a key's secret. Keys have
// 256 random bits, so a slow hash would protect nothing.
//
// # How long a revoked key works
//
// Keys are cached for at most a second, counted from before the lookup. So a revocation holds
// within a second in every process, and a busy key costs one lookup a second per process.
package auth
