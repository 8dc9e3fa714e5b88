"""The scheduler: while it leads it releases due tasks, returns stale claims and keeps the house. In every worker, and as a process."""
