"""What ``minisbert trace`` finds in another implementation's hidden states."""
