"""The worker process: fetches, runs and settles tasks, keeps its leases, takes over dead peers' work, drains on SIGTERM."""
