package codec

import (
	"encoding/json"
	"fmt"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
)

// CallbackSecret converts a secret of callbacks, without the secret itself, to its JSON form.
func CallbackSecret(s queue.CallbackSecret) wire.CallbackSecret {
	return wire.CallbackSecret{
		ID: s.ID, Kind: string(s.Kind), Created: UTC(s.Created), By: s.By, PublicKey: s.PublicKey(),
	}
}

// DecodeCallbackSecret reads the optional body of a new secret of callbacks.
func DecodeCallbackSecret(body []byte) (kind queue.CallbackKind, err error) {
	kind = queue.CallbackHMAC
	err = decodeOptional(body, (*wire.CallbackSecretRequest)(nil),
		func(rd *reader, name, path string, value json.RawMessage) bool {
			if name != "kind" {
				return false
			}
			text := queue.CallbackKind(rd.text(path, value, 1, wire.MaxTypeBytes))
			switch text {
			case "": // what is wrong is said
			case queue.CallbackHMAC, queue.CallbackEd25519:
				kind = text
			default:
				rd.wrongValue(path, value, "must be hmac or ed25519")
			}
			return true
		})
	return kind, err
}

// DecodeCallbackEndpoints reads endpoints. check returns the rule that one breaks; nil: any is
// good. Errors do not quote them, because they may hold secrets.
func DecodeCallbackEndpoints(body []byte, check func(prefix string) error) (list []string, err error) {
	value, err := oneValue(body)
	if err != nil {
		return nil, err
	}
	var rd reader
	named := false
	rd.object("", value, (*wire.CallbackEndpoints)(nil), func(name, path string, value json.RawMessage) bool {
		if name != "endpoints" {
			return false
		}
		named, list = true, []string{}
		if n := rd.array(path, value, func(i int, path string, value json.RawMessage) {
			if i >= queue.MaxCallbackEndpoints {
				return
			}
			text := rd.text(path, value, 1, wire.MaxCallback)
			if text != "" && check != nil {
				if err := check(text); err != nil {
					rd.wrong(path, value, err.Error())
				}
			}
			list = append(list, text)
		}); n > queue.MaxCallbackEndpoints {
			rd.wrong(path, value, fmt.Sprintf("must have at most %d elements", queue.MaxCallbackEndpoints))
		}
		return true
	})
	if !named && len(rd.Fields) == 0 {
		rd.wrong("endpoints", nil, "is required")
	}
	return list, rd.Err()
}
