"""An Arrow file to rows, and SQL over them."""
