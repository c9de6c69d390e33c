"""What ``minisbert inspect`` finds in files of training data."""
