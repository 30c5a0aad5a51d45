"""What the hot path hands to the thread that writes: integers, and what they stand for. Without torch."""
