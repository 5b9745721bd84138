"""Commands for keys: one file for each command or pair of commands."""
