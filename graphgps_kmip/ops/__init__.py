"""Fused operators with their plain torch form next to them, and what they share; nothing here knows a method."""
