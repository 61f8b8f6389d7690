"""Code for bulk-synchronous programs: codelets in C++, and the schedule of exchanges as data."""
