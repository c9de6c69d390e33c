"""What ``minisbert certify`` finds in vectors of another engine."""
