-- Does: take, extend or give back the leader lock; compares the token before it touches a lock that is there.
-- KEYS: 1 lock
-- ARGV: 7 token · 8 ttl_ms (0 = give it back)
-- Returns: {1 if the lock is ours now (or was given back), else 0; how long somebody else's still holds (ms, -1: for ever)}
-- Publishes: nothing
local holder = call('GET', KEYS[1])
if holder and holder ~= ARGV[7] then return { 0, call('PTTL', KEYS[1]) } end
if ARGV[8] == '0' then return { holder and call('DEL', KEYS[1]) or 0, 0 } end
call('SET', KEYS[1], ARGV[7], 'PX', ARGV[8])
return { 1, 0 }
