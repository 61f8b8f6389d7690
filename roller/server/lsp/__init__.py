"""Language server that shows a live profile in an editor."""
