"""Programs whose anchor runs on the matrix unit of each tile."""
