package scripts

// BeforePayload is the greatest offset of a payload in a record.
const BeforePayload = maxPrefix

// PeekPayload reads flow and payload from the first bytes of a record; ok is false if they are not
// a record. size is the length of the payload, 0 if the job has ended. payload is the part of it in
// start, whose memory it shares.
func PeekPayload(start []byte) (flow string, payload []byte, size int, ok bool) {
	p, ok := PeekRecord(start)
	if !ok {
		return "", nil, 0, false
	}
	prefix := int(fieldPrefix.of(start))
	size = int(fieldPayload.of(start))
	if prefix < HeadLength || prefix > len(start) {
		return "", nil, 0, false
	}
	n := min(size, len(start)-prefix)
	return p.Flow, start[prefix : prefix+n : prefix+n], size, true
}
