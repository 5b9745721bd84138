"""Commands that run a program: `lock`, `env` and `--exec`."""
