"""Code generators: rPrograms to kernels through TVM (imports TVM)."""
