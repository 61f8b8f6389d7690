"""The compiler of one operator: from an expression to the kernel that is chosen, built, checked and timed."""
