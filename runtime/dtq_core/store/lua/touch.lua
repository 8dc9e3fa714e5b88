-- Does: renew the lease of entries that are still ours; never takes one back.
-- KEYS: 1 ledger of the first task's queue (routing)
-- ARGV: 7 worker · 8 n, then per task: task_id queue band entry_id fence
-- Returns: per task OK, CANCEL (ours, and somebody asked to cancel it), or LOST
-- Publishes: nothing
local answers = {}
for n = 0, ARGV[8] - 1 do
  local i = 9 + n * 5
  local r = try('HMGET', TASK .. ARGV[i], 'fence', 'status', 'cancel_requested')
  if r[1] == ARGV[i + 4] and r[2] == 'running' then
    try('XCLAIM', stream_of(ARGV[i + 1], ARGV[i + 2]), 'workers', ARGV[7], 0, ARGV[i + 3], 'IDLE', 0, 'JUSTID')
    answers[n + 1] = r[3] == '1' and 'CANCEL' or 'OK'
  else
    answers[n + 1] = 'LOST'
  end
end
return answers
