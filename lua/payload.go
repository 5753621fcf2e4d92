package lua

// BeforePayload is how many bytes of a record stand before its payload at the most.
const BeforePayload = maxPrefix

// PeekPayload reads flow and payload from the first bytes of a record, false when it is none. size
// is what the payload has in bytes, 0 for a record that lost it at its end; payload is as much of
// it as is there. It shares the memory of start.
func PeekPayload(start []byte) (flow string, payload []byte, size int, ok bool) {
	_, flow, ok = PeekRecord(start)
	if !ok {
		return "", nil, 0, false
	}
	prefix := int(fieldPrefix.of(start))
	size = int(fieldPayload.of(start))
	if prefix < HeadLength || prefix > len(start) {
		return "", nil, 0, false
	}
	n := min(size, len(start)-prefix)
	return flow, start[prefix : prefix+n : prefix+n], size, true
}
