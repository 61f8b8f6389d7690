"""How well a trace, its memory and its time agree with what is known of real runs."""
