"""Tables, figures and pages from results on disk; nothing here trains."""
