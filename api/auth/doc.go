// Package auth decides whose traffic a request is: the tenant, and the tier that its credential
// claims.
//
// There are three kinds of credential, each behind a mode that is on or off. An API key is looked
// up in the store, a JWT is verified with the keys of its issuer, and a guest has none and is told
// from others by its address. What is sent decides the kind, and a credential that is not good is
// refused: it never falls through to another kind, so that nobody gets in as a guest whose key was
// revoked. Without this package, in the mode none, a tenant is whoever says so.
//
// A Refusal says what class of mistake it was and no more: not which of a key's two halves was
// wrong, and nothing of the credential itself. What is stored of a key's secret is its SHA-256;
// keys have 256 random bits, so a slow hash would protect nothing.
//
// # How long a revoked key works
//
// Keys are remembered for at most a second, counted from before the store was asked. So a
// revocation holds within a second in every process, and a busy key costs the store one question a
// second of each.
package auth
