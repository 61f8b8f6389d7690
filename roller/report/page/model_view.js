function showKernel(){} function showModel(){} function showBenchmark(){}
