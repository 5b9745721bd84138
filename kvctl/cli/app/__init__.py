"""The command framework: registry, shared options, help, completion, errors to exit codes."""
