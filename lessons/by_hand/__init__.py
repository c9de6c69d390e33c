"""What a library does in one call, written out: a vocabulary, the way back through a layer, bills, gains, geometry."""
