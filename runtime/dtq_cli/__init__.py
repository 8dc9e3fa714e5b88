"""The `dtq` command: everything a person does with DTQ from a terminal, straight on Redis (contract §12)."""
