-- Does: a worker that stopped by itself leaves: its row stays a short while, its consumers go where nothing is pending.
-- KEYS: 1 row · 2 set of workers
-- ARGV: 7 worker · 8 how long the row stays (s) · queues…
-- Returns: consumers dropped
-- Publishes: WORKER_STOPPED
local dropped = 0
for i = 9, #ARGV do
  for band = 0, 9 do
    local stream = stream_of(ARGV[i], band)
    local consumers = call('TYPE', stream).ok == 'stream' and try('XINFO', 'CONSUMERS', stream, 'workers') or {}
    for _, consumer in ipairs(consumers.err and {} or consumers) do
      if value_of(consumer, 'name') == ARGV[7] and value_of(consumer, 'pending') == 0 then
        call('XGROUP', 'DELCONSUMER', stream, 'workers', ARGV[7])
        dropped = dropped + 1
      end
    end
  end
end
call('EXPIRE', KEYS[1], ARGV[8])
worker_event('WORKER_STOPPED', ARGV[7])
return dropped
