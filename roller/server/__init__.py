"""Live profile of a training step beside its source; the page and the editors share one session."""
