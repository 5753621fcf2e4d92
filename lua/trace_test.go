package lua_test

import (
	"strings"

	"github.com/7509e464/sluice/internal/scripts"
)

// tracer is put before a script and watches its commands. Invariant 9: a script touches every key
// before its first write, so that a slot in migration refuses it with nothing changed; the key that
// unlocks is missing always and is the first to be written. And no number reaches Redis in a form
// that has lost digits.
const tracer = `
local redis = (function(real)
  local writes = {}
  for name in string.gmatch('SET MSET SETRANGE DEL EXPIRE PERSIST HSET HINCRBY ZADD ZREM ZREMRANGEBYSCORE SADD SREM LPUSH RPUSH LTRIM PEXPIRE', '%S+') do
    writes[name] = true
  end
  local touched, wrote, declared = {}, false, {}
  for i = 1, #KEYS do
    declared[KEYS[i]] = true
    touched[KEYS[i]] = true -- Redis does that itself when it takes the call
  end
  local kinds = ' @KINDS@ '
  local function touch(cmd, key)
    if not declared[key] then
      local kind = string.match(key, '^sluice:{[^}]*}:(%l+)')
      if not kind or not string.find(kinds, ' ' .. kind .. ' ', 1, true) then
        error('TRACE ' .. cmd .. ' of a key that is neither declared nor named as derived: ' .. key)
      end
    end
    if wrote and not touched[key] then
      error('TRACE ' .. cmd .. ' of a key that was not touched before the first write: ' .. key)
    end
    touched[key] = true
  end
  local function info(cmd, ...)
    return real.pcall(cmd == 'INFO' and cmd or error('TRACE redis.pcall of ' .. cmd), ...)
  end
  return { REDIS_VERSION_NUM = real.REDIS_VERSION_NUM, pcall = info, call = function(cmd, ...)
    local args = { ... }
    for i = 1, #args do
      if type(args[i]) == 'string' and string.find(args[i], '^%-?%d+%.?%d*e[+-]%d+$') then
        error('TRACE ' .. cmd .. ' is given a number that has lost digits: ' .. args[i])
      end
    end
    if cmd ~= 'PUBLISH' and cmd ~= 'SPUBLISH' and cmd ~= 'TIME' then
      local unlock = cmd == 'DEL' and #args == 1 and string.find(args[1], ':unlock$')
      if not unlock then
        for i = 1, (cmd == 'DEL' or cmd == 'EXISTS' or cmd == 'MGET') and #args or 1 do
          touch(cmd, args[i])
        end
        for i = 3, cmd == 'MSET' and #args or 0, 2 do
          touch(cmd, args[i])
        end
      end
      wrote = wrote or writes[cmd] or false
    end
    return real.call(cmd, ...)
  end }
end)(redis)
`

// traced are the scripts with the tracer before them.
var traced = func() map[*scripts.Script]*scripts.Script {
	out := map[*scripts.Script]*scripts.Script{}
	for _, s := range scripts.Commands.All() {
		source := strings.Replace(tracer, "@KINDS@", strings.Join(headerOf(s.File()).derived(), " "), 1) + s.Source()
		out[s] = scripts.NewScript(s.Name, source)
	}
	for s, with := range out {
		with.Pools = out[s.Pools]
	}
	return out
}()
