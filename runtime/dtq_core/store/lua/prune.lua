-- Does: tidy up after workers that are gone: tell of silent ones, forget those without a row, drop their consumers when nothing is pending.
-- KEYS: 1 set of workers
-- ARGV: 7 silent after so many of its own intervals · 8 a consumer is dropped when idle for so long (ms) · 9 how many queues · queues… · worker ids…
-- Returns: {stale worker ids, forgotten, consumers dropped}
-- Publishes: WORKER_STALE
local stale, forgotten, dropped, n = {}, 0, 0, tonumber(ARGV[9])
for i = 10 + n, #ARGV do
  local id = ARGV[i]
  local key = P .. ':worker:' .. id
  local r = try('HMGET', key, 'last_heartbeat', 'interval_ms', 'stale', 'status')
  if r.err or not r[1] then
    if not r.err then
      call('SREM', KEYS[1], id)
      forgotten = forgotten + 1
    end
  elseif r[4] ~= 'stopped' and not r[3] and NOW - count(r[1]) > ARGV[7] * (whole(r[2]) or 5000) then
    call('HSET', key, 'stale', '1')
    worker_event('WORKER_STALE', id)
    stale[#stale + 1] = id
  end
end
-- The look at the pending list and the deletion are one step, so a consumer that fetches in between keeps its work.
for i = 10, 9 + n do
  for band = 0, 9 do
    local stream = stream_of(ARGV[i], band)
    local consumers = call('TYPE', stream).ok == 'stream' and try('XINFO', 'CONSUMERS', stream, 'workers') or {}
    for _, consumer in ipairs(consumers.err and {} or consumers) do
      local name = value_of(consumer, 'name')
      if value_of(consumer, 'pending') == 0 and value_of(consumer, 'idle') > tonumber(ARGV[8]) and dropped < 100
        and call('EXISTS', P .. ':worker:' .. name) == 0 then
        call('XGROUP', 'DELCONSUMER', stream, 'workers', name)
        dropped = dropped + 1
      end
    end
  end
end
return { stale, forgotten, dropped }
