"""Tools for developers of roller; none of them is in the wheel."""
