"""The command framework: registry, shared options, sessions, help, completion, errors to exit codes."""
