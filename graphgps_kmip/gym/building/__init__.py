"""Networks from the config, their parameter counts, and what a dry run prints."""
