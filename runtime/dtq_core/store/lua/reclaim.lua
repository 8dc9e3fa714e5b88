-- Does: take over entries of a queue whose owner has been silent for the visibility timeout, p9 → p0, within capacity.
-- KEYS: 1 ledger of the queue (routing)
-- ARGV: 7–9 gate · 10 queue · 11 capacity · 12–21 cursors of p9…p0 · task types this worker knows…
-- Returns: {10 cursors, paused queues, deferred, problems, ended, tasks}
-- Publishes: as fetch; a redelivery is TASK_STARTED with the next attempt
local queue, capacity = ARGV[10], tonumber(ARGV[11])
for i = 22, #ARGV do KNOWN[ARGV[i]] = true end
local cursors = {}
for i = 1, 10 do cursors[i] = ARGV[11 + i] end
local paused = {}
for_queue(function()
  call('HGET', P .. ':ledger:' .. queue, 'running')
  if call('EXISTS', P .. ':queue:' .. queue .. ':paused') == 1 then
    paused[1] = queue
    return
  end
  for i = 1, 10 do
    local room = capacity - #tasks
    if room <= 0 then break end
    local band = 10 - i
    local stream = stream_of(queue, band)
    local length = try('XLEN', stream)
    if type(length) == 'table' then
      problems[#problems + 1] = stream .. ': ' .. length.err
    elseif length > 0 then
      -- It looks at ten times COUNT entries and says where it stopped (decision 32).
      local got = try('XAUTOCLAIM', stream, 'workers', WORKER, VISIBILITY, cursors[i], 'COUNT', math.min(room, 100))
      if got.err then
        if not find(got.err, 'NOGROUP', 1, true) then problems[#problems + 1] = stream .. ': ' .. got.err end
      else
        cursors[i] = got[1]
        for _, entry in ipairs(got[2]) do
          if entry and entry[2] then deliver(queue, band, stream, entry[1], entry[2], true) end
        end
      end
    end
  end
end, queue)
return answer(cursors, paused)
