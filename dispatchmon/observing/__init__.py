"""What goes in and out of modules, what happens to parameters, and what is said while the program runs."""
