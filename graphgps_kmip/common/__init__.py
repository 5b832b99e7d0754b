"""What every package may use: atomic writes, locks, signals, YAML and JSON files, near misses, gradient helpers."""
