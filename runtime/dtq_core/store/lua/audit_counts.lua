-- Does: compare the ledgers of some queues with the lengths they stand for, and all ledgers with the schedule, at one moment. Changes nothing.
-- KEYS: 1 set of queues
-- ARGV: 7 compare the schedule too (1) · queues…
-- Returns: {scheduled by the ledgers, scheduled by the sets, per queue {queue, entries by the ledger (-1: it is no hash), entries by the streams, pending entries, ledger…}}
-- Publishes: nothing
local rows, by_ledgers, by_sets = {}, 0, 0
if ARGV[7] == '1' then
  for _, queue in ipairs(call('SMEMBERS', KEYS[1])) do
    local c = try('HMGET', P .. ':ledger:' .. queue, 'pending', 'retrying')
    by_ledgers = by_ledgers + (c.err and 0 or count(c[1]) + count(c[2]))
  end
  by_sets = call('ZCARD', SCHEDULE) + call('ZCARD', CLAIMED)
end
for i = 8, #ARGV do
  local queue = ARGV[i]
  local ledger = try('HGETALL', P .. ':ledger:' .. queue)
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
  rows[#rows + 1] = ledger.err and { queue, -1, -1, -1 } or { queue, count(value_of(ledger, 'queued')) + count(value_of(ledger, 'running')), entries, pending, unpack(ledger) }
end
return { by_ledgers, by_sets, rows }
