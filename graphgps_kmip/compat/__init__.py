"""The public codes (GraphGPS, Exphormer, Sp_Exphormer, LRGB, k-MIP): what their files, checkpoints and faults are here.

Nothing else of this package knows them. ``gym`` applies what stands here: tables from their keys, dialects and names of
parameters to ours, and their faults, switched on by settings of ours.
"""
