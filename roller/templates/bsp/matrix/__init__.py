"""Programs whose anchor goes through the matrix unit of each tile."""
