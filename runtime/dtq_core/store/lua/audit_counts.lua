-- Does: compare the ledgers with the lengths they stand for, at one moment. Changes nothing.
-- KEYS: 1 set of queues
-- ARGV: 7 queue to look at (empty: all, and the schedule)
-- Returns: {scheduled by the ledgers, scheduled by the sets, per queue {queue, entries by the ledger, entries by the streams, pending entries, ledger…}}
-- Publishes: nothing
local queues = ARGV[7] ~= '' and { ARGV[7] } or call('SMEMBERS', KEYS[1])
local rows, scheduled = {}, 0
for _, queue in ipairs(queues) do
  local ledger = call('HGETALL', P .. ':ledger:' .. queue)
  local entries, pending = 0, 0
  for band = 0, 9 do
    local stream = stream_of(queue, band)
    local length = try('XLEN', stream)
    if type(length) == 'number' and length > 0 then
      entries = entries + length
      local groups = try('XINFO', 'GROUPS', stream)
      for _, group in ipairs(groups.err and {} or groups) do
        if value_of(group, 'name') == 'workers' then pending = pending + value_of(group, 'pending') end
      end
    end
  end
  local function of(field) return tonumber(value_of(ledger, field) or 0) or 0 end
  scheduled = scheduled + of('pending') + of('retrying')
  rows[#rows + 1] = { queue, of('queued') + of('running'), entries, pending, unpack(ledger) }
end
return { scheduled, call('ZCARD', SCHEDULE) + call('ZCARD', CLAIMED), rows }
