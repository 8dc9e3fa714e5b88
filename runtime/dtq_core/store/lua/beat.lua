-- Does: a worker's sign of life: the fields of its row, and the task types it can run (decision 13). Each is written for
--   itself, so that one spoiled key harms nothing beside it.
-- KEYS: 1 row · 2 set of workers · then the task types of each queue
-- ARGV: 7 started_at ("0" = do not compare) · 8 ttl_s · 9 how long a type is kept, s · 10 n · n × (field, value) · types…
-- Returns: {1, errors…}; {0} when the row is of another worker that took this id, and nothing was written
-- Publishes: nothing
local born = try('HGET', KEYS[1], 'started_at')
if type(born) == 'string' and ARGV[7] ~= '0' and born ~= ARGV[7] then return { 0 } end
local answer, row, types = { 1 }, { 'last_heartbeat', NOW_MS }, {}
local function write(...)
  local reply = try(...)
  if type(reply) == 'table' and reply.err then answer[#answer + 1] = select(1, ...) .. ' ' .. select(2, ...) .. ': ' .. reply.err end
end
local types_at = 11 + 2 * ARGV[10]
for i = 11, types_at - 1 do row[#row + 1] = ARGV[i] end
for i = types_at, #ARGV do
  types[#types + 1] = NOW_MS
  types[#types + 1] = ARGV[i]
end
write('HSET', KEYS[1], unpack(row))
write('HDEL', KEYS[1], 'stale')
write('EXPIRE', KEYS[1], ARGV[8])
write('SADD', KEYS[2], row[4])
if #types == 0 then return answer end
for i = 3, #KEYS do
  for at = 1, #types, 1000 do write('ZADD', KEYS[i], unpack(types, at, math.min(at + 999, #types))) end
  write('ZREMRANGEBYSCORE', KEYS[i], '-inf', int(NOW - ARGV[9] * 1000))
  write('EXPIRE', KEYS[i], ARGV[9])
end
return answer
