"""What a library does in one call, written out: merges, gradients, losses, costs, geometry."""
