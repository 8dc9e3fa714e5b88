"""The HTTP service: submit and look after tasks, the live event feed, metrics (contract §7–§9, §11, §13)."""
