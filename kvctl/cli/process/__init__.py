"""Commands that run a program: `lock`, `env`, `--exec`."""
