"""Builders of networks: from settings under their YAML names to modules, without GraphGym."""
