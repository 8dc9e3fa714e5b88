"""The commands, one module per noun; each function takes the parsed arguments and returns an exit status."""
