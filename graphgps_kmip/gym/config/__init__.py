"""Config: keys with defaults and ranges, loading of YAML files, config hash, settings of an earlier run."""
