"""Commands for keys: `get`, `put`, `delete`, `watch`, `load` and the others."""
