-- Does: set or clear the pause flag of a queue, audited.
-- KEYS: 1 flag
-- ARGV: 7 actor · 8 request id · 9 queue · 10 pause (1) or resume (0)
-- Returns: 1 if it changed something, else 0
-- Publishes: CONFIGURATION_CHANGED
local paused = ARGV[10] == '1'
audited(ARGV[7])
local was = call('EXISTS', KEYS[1]) == 1
if paused then call('SET', KEYS[1], '1') else call('DEL', KEYS[1]) end
audit(ARGV[7], paused and 'queue.pause' or 'queue.resume', '', ARGV[8], ARGV[9])
try('PUBLISH', P .. ':events', event_head .. fmt('%012x', 1) .. '","ts":"' .. iso() .. '","type":"CONFIGURATION_CHANGED","task_id":null,"queue":"'
  .. ARGV[9] .. '","task_type":null,"attempt":null,"worker_id":null,"metadata":{"paused":' .. tostring(paused) .. '}}')
if not paused then wake(ARGV[9]) end
return was ~= paused and 1 or 0
