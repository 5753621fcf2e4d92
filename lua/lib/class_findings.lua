-- class_findings: what repair compares of classes of tenants.

--! needs clock stored findings

-- classes_compare compares the sums of the classes with those over the flows, by class, and their
-- tenants with the flows' own, which are named CLASS TENANT.
local function classes_compare(set, stored, members)
  local fields = redis.call('HKEYS', KEYS[1])
  for i = 1, #fields do
    local name = string.match(fields[i], '^class:(.+)$')
    if name then
      stored[name] = stored[name] or 0
    end
  end
  for name, bytes in pairs(stored) do
    local key = PREFIX .. 'class:' .. name
    set(class_add(name), 'totals', 'class:' .. name, 'stored', bytes)
    local listed = sound(key, 'set') and redis.call('SMEMBERS', key) or {}
    for i = 1, #listed do
      if not members[name .. ' ' .. listed[i]] then
        find('unlisted', 'class:' .. name, listed[i] .. ' has no flow in it', 'SREM', key, listed[i])
      end
      members[name .. ' ' .. listed[i]] = nil
    end
  end
  for member in pairs(members) do
    local name, tenant = string.match(member, '^(%S+) (%S+)$')
    if not exists(PREFIX .. 'lines:' .. tenant) then -- else it leaves the class
      find('unlisted', 'class:' .. name, 'without ' .. tenant, 'SADD', PREFIX .. 'class:' .. name, tenant)
    end
  end
end
