-- Does: take a worker id, once: refuses one that has a row, or whose consumer still holds entries of an earlier life.
-- KEYS: 1 row · 2 set of workers
-- ARGV: 7 ttl_s · 8 number of queues · queues… · fields of the row…
-- Returns: 1 if the id is ours now, else 0
-- Publishes: WORKER_STARTED
if call('EXISTS', KEYS[1]) == 1 then return 0 end
local row, n = {}, tonumber(ARGV[8])
for i = 9 + n, #ARGV do row[#row + 1] = ARGV[i] end
local id = row[2]
for i = 9, 8 + n do
  for band = 0, 9 do
    local stream = stream_of(ARGV[i], band)
    if call('TYPE', stream).ok == 'stream' then
      for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do
        if value_of(group, 'name') == 'workers' and #call('XPENDING', stream, 'workers', '-', '+', 1, id) > 0 then return 0 end
      end
    end
  end
end
call('HSET', KEYS[1], unpack(row))
call('EXPIRE', KEYS[1], ARGV[7])
call('SADD', KEYS[2], id)
worker_event('WORKER_STARTED', id)
return 1
