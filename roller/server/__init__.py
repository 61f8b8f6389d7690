"""A live profile of a training step beside its source: one session for the page and for editors."""
