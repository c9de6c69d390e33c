"""Training objectives: which rows, which loss, which evaluation."""
