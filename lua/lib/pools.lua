-- pools: what each script knows of pools. One that is linked without pools has no_pools in place of
-- the functions of the parts that are marked with pools.

--! needs record

local POOL = 43 -- '+', with which the name of a pool begins

-- names_pool reports whether a flow of this name is a pool.
local function names_pool(name)
  return byte(name) == POOL
end

local pools, pool_list = {}, {} -- by name without the slash, and in the order in which they were read

-- no_pools stops the script before its first write. The caller sends the one that has pools.
local function no_pools()
  error('POOLS are needed')
end
