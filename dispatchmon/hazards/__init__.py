"""Which writes took a value that somebody still needed."""
