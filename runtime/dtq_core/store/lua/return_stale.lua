-- Does: give claims back to the schedule whose scheduler did not release them in time; only for the leader.
-- KEYS: 1 schedule · 2 claims · 3 lock
-- ARGV: 7 leader's token · 8 age (ms) · 9 limit
-- Returns: how many were returned
-- Publishes: nothing
if call('GET', KEYS[3]) ~= ARGV[7] then return 0 end
call('ZCARD', KEYS[1])
local ids = call('ZRANGEBYSCORE', KEYS[2], '-inf', int(NOW - ARGV[8]), 'LIMIT', 0, ARGV[9])
for _, id in ipairs(ids) do
  call('ZADD', KEYS[1], NOW_MS, id)
  call('ZREM', KEYS[2], id)
end
return #ids
