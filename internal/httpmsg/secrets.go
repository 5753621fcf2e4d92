package httpmsg

import "strings"

// IsCredential reports whether a header is named like a credential, so that its value is hidden.
func IsCredential(name string) bool {
	plain := strings.TrimPrefix(Comparable(name), "x-")
	return hasSecretWord(name) || secretParameters[plain] || strings.HasSuffix(plain, "-key") && plain != "idempotency-key"
}

// IsSecretParameter does the same for a parameter of a query.
func IsSecretParameter(name string) bool {
	return hasSecretWord(name) || secretParameters[strings.ToLower(name)]
}

// secretWords are parts of the names of headers and parameters that hold credentials.
var secretWords = []string{
	"authorization", "cookie", "apikey", "accesskey", "subscriptionkey", "token", "secret", "password", "passwd",
	"credential", "session", "signature", "xauth", "assertion", "jwt", "hmac", "passphrase", "privatekey", "bearer",
}

// secretParameters are names of parameters that hold credentials, and would be parts of too many
// others.
var secretParameters = map[string]bool{"key": true, "auth": true, "sig": true, "pwd": true, "code": true,
	"pass": true, "access": true, "otp": true, "pin": true, "sid": true,
}

var joined = strings.NewReplacer("-", "", "_", "", ".", "")

// hasSecretWord reports whether the name of a header or a parameter has a part of these.
func hasSecretWord(name string) bool {
	plain := joined.Replace(strings.ToLower(name))
	for _, word := range secretWords {
		if strings.Contains(plain, word) {
			return true
		}
	}
	return false
}
