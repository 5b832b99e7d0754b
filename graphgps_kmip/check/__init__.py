"""Is everything right on this machine? Kernels, layers and models of a device against plain float64 on the CPU.

``python -m graphgps_kmip.check`` runs it; the README shows what it prints.
"""
