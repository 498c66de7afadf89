"""The native part of the ExecuTorch runtime: training kernels and a session over the wheel's own libraries, in C++."""
