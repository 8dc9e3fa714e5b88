-- Does: move due members from the schedule to the claims, at most `limit`; only for the leader.
-- KEYS: 1 schedule · 2 claims · 3 lock
-- ARGV: 7 leader's token · 8 limit
-- Returns: {leading (1 or 0), ids, ms until the next one is due (-1: none)}
-- Publishes: nothing
if call('GET', KEYS[3]) ~= ARGV[7] then return { 0, {}, -1 } end
call('ZCARD', KEYS[2])
local ids = call('ZRANGEBYSCORE', KEYS[1], '-inf', NOW_MS, 'LIMIT', 0, ARGV[8])
for _, id in ipairs(ids) do
  call('ZADD', KEYS[2], NOW_MS, id)
  call('ZREM', KEYS[1], id)
end
-- Named until they are released: whoever leads after a lost reply or a death goes on with these.
if #ids > 0 then call('SET', P .. ':retry:batch', table.concat(ids, ' '), 'EX', 60) end
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return { 1, ids, first[2] and int(math.min(86400000, math.max(0, first[2] - NOW))) or -1 }
