"""What a library does in one call, written out: merges, the way back in a layer, losses, bills,
gains, geometry.
"""
