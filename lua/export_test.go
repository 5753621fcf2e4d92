package lua

// NewScript makes a script of a test.
func NewScript(name, source string) *Script { return newScript(name, func() string { return source }) }
