package lua

// HeadFields are the names of the fields of a record's head, in their order.
func HeadFields() (names []string) {
	for _, f := range head {
		names = append(names, f.name)
	}
	return names
}

// NewScript makes a script of a test.
func NewScript(name, source string) *Script { return newScript(name, func() string { return source }) }
