"""What each operator overload reads, writes and does to memory, worked out once from its schema."""
