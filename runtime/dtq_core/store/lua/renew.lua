-- Does: keep the records and idempotency keys of live tasks from expiring: one step along a band, or along the schedule.
-- KEYS: 1 a stream, the schedule or the claims
-- ARGV: 7 first id or rank to look at · 8 at most
-- Returns: {where to go on ("" = the end), records renewed, ids without a record}
-- Publishes: nothing
local is_stream = call('TYPE', KEYS[1]).ok == 'stream'
local renewed, missing, last, seen = 0, {}, '', 0
local function renew(id, wait_s)
  local key = TASK .. id
  local r = try('HMGET', key, 'status', 'queue', 'idempotency_key')
  if r.err or not r[1] then
    missing[#missing + 1] = id
    return
  end
  if TERMINAL[r[1]] then return end
  if call('TTL', key) < wait_s + RETENTION * 0.75 then
    call('EXPIRE', key, int(wait_s + RETENTION))
    renewed = renewed + 1
  end
  if r[3] and r[3] ~= '' and r[2] then
    local name = P .. ':idempotency:' .. r[2] .. ':' .. r[3]
    if call('TTL', name) < wait_s + IDEM_TTL * 0.75 then
      local now = try('GET', name)
      if type(now) == 'string' and find(now, '"' .. id .. '"', 1, true) then call('EXPIRE', name, int(wait_s + IDEM_TTL)) end
    end
  end
end
if is_stream then
  for _, entry in ipairs(call('XRANGE', KEYS[1], ARGV[7] == '' and '-' or '(' .. ARGV[7], '+', 'COUNT', ARGV[8])) do
    seen, last = seen + 1, entry[1]
    if entry[2][1] == 'task_id' then renew(entry[2][2], 0) end
  end
elseif call('TYPE', KEYS[1]).ok == 'zset' then
  local from = tonumber(ARGV[7] == '' and 0 or ARGV[7])
  local members = call('ZRANGE', KEYS[1], from, from + ARGV[8] - 1, 'WITHSCORES')
  for i = 1, #members, 2 do
    seen = seen + 1
    -- At most as far as a task can be delayed: a score made by hand may be anything.
    renew(members[i], math.min(2592000, math.max(0, math.ceil((members[i + 1] - NOW) / 1000))))
  end
  last = int(from + seen)
end
return { seen == tonumber(ARGV[8]) and last or '', renewed, missing }
