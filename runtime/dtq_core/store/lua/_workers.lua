-- Does: tell the feed about a worker, for the scripts about workers.
local function worker_event(kind, id)
  events = events + 1
  try('PUBLISH', P .. ':events', event_head .. fmt('%012x', events) .. '","ts":"' .. iso() .. '","type":"' .. kind
    .. '","task_id":null,"queue":null,"task_type":null,"attempt":null,"worker_id":' .. quote(id) .. '}')
end
