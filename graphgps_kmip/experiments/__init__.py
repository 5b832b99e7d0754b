"""Experiments as data: what is trained, what is made of it, and how far it is."""
