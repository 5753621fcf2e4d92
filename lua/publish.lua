-- publish: send a message on a channel of a shard.
--
-- Guarantee: it takes the way that the messages of all scripts take, so a subscriber that hears it
-- hears those as well. A second call sends a second message.
--
-- KEYS
--   1 clock
-- ARGV
--   1 channel   2 message
-- Reply
--   1 it was sent on a sharded channel (SPUBLISH), 0 on a plain one (PUBLISH)
-- Derived keys: (none)
-- Channels: (that of the argument)

--! needs clock

return { publish(ARGV[1], ARGV[2]) }
