-- Does: forget a queue that has held nothing for the retention time; until then note since when it is empty. Also cuts index ghosts.
-- KEYS: 1 ledger · 2 set of queues
-- ARGV: 7 queue
-- Returns: 1 if the queue was forgotten, else 0
-- Publishes: nothing
local queue = ARGV[7]
if call('SISMEMBER', KEYS[2], queue) == 0 then return 0 end
local index = P .. ':queue:' .. queue .. ':dead'
local oldest = call('XRANGE', DEAD, '-', '+', 'COUNT', 1)[1]
if oldest then
  call('ZREMRANGEBYSCORE', index, '-inf', '(' .. string.match(oldest[1], '^%d+'))
else
  call('DEL', index)
end
local c = call('HMGET', KEYS[1], 'queued', 'running', 'pending', 'retrying', 'submitted', 'idle_mark', 'requeued')
local live = tonumber(c[1] or 0) + tonumber(c[2] or 0) + tonumber(c[3] or 0) + tonumber(c[4] or 0)
local served = false
for band = 0, 9 do
  local stream = stream_of(queue, band)
  if call('TYPE', stream).ok == 'stream' then live = live + call('XLEN', stream) end
end
for _, worker in ipairs(call('SRANDMEMBER', P .. ':workers', 50)) do
  local queues = try('HGET', P .. ':worker:' .. worker, 'queues')
  if type(queues) == 'string' and find(',' .. queues .. ',', ',' .. queue .. ',', 1, true) then served = true end
end
if live ~= 0 or served or call('ZCARD', index) > 0 or call('EXISTS', P .. ':queue:' .. queue .. ':paused') == 1
  or call('EXISTS', P .. ':queue:' .. queue .. ':policy') == 1 then
  if c[6] then call('HDEL', KEYS[1], 'idle_mark') end
  return 0
end
local count = (c[5] or '0') .. '/' .. (c[7] or '0')
local marked, since = string.match(c[6] or '', '^(%S+) (%d+)$')
if marked ~= count then
  call('HSET', KEYS[1], 'idle_mark', count .. ' ' .. NOW_MS)
  return 0
end
if NOW - since < RETENTION * 1000 then return 0 end
for band = 0, 9 do call('DEL', stream_of(queue, band)) end
call('DEL', KEYS[1], P .. ':wake:' .. queue, P .. ':queue:' .. queue .. ':task_types')
call('SREM', KEYS[2], queue)
return 1
