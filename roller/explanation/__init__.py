"""Why a program: construction as a story, its price term by term, what limits it, and why others are worse."""
