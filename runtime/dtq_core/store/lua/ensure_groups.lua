-- Does: make the streams and the group of a queue where they are missing, from the first entry on, and make the queue known.
-- KEYS: 1 set of queues
-- ARGV: 7 most queues · queues…
-- Returns: per queue 1, or 0 where there are too many queues
-- Publishes: nothing
local answers = {}
for i = 8, #ARGV do
  local queue = ARGV[i]
  if call('SISMEMBER', KEYS[1], queue) == 0 and call('SCARD', KEYS[1]) >= tonumber(ARGV[7]) then
    answers[i - 7] = 0
  else
    call('SADD', KEYS[1], queue)
    for band = 0, 9 do
      local stream = stream_of(queue, band)
      local kind = call('TYPE', stream).ok
      local there = false
      if kind == 'stream' then
        for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do there = there or value_of(group, 'name') == 'workers' end
      end
      if not there and (kind == 'none' or kind == 'stream') then call('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM') end
    end
    answers[i - 7] = 1
  end
end
return answers
