"""Shared helpers: atomic writes, locks, signals, durations, YAML, JSON and torch files, near misses, gradients."""
