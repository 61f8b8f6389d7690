"""The clock, and medians over undisturbed windows."""
