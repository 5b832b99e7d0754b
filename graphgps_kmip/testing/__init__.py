"""Test tools: laws of attentions, reference forms, comparisons with them, and the check of a machine."""
