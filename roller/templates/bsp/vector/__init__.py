"""Programs whose workers compute in vectors."""
