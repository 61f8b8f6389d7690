"""What developers of roller run beside the tests; no part of the wheel."""
